//! Every shape of key: one of each by name, then random ones to fill up.

use anyhow::Result;

use super::pen::Pen;
use super::random::Random;

/// Expiry far away with odd milliseconds, so that a tool that rounds is caught.
const FAR_MS: i64 = 4_000_000_000_123;
/// Expiry that a 64-bit float cannot hold.
const BEYOND_DOUBLE_MS: i64 = 9_007_199_254_740_993;
const HOUR_MS: i64 = 3_600_000;

/// Elements of the very large collections that are written by one command.
const ELEMENTS_PER_COMMAND: u64 = 1_000;
/// The large stream has one entry for this many elements of the other large collections.
const ELEMENTS_PER_ENTRY: u64 = 5;

/// Scores that formatting or arithmetic on the way would change.
const SCORES: [&str; 18] = [
    "0",
    "-0",
    "1",
    "-1",
    "inf",
    "-inf",
    "1e-300",
    "-1e-300",
    "5e-324",
    "1.7976931348623157e308",
    "0.1",
    "0.30000000000000004",
    "3.1415926535897931",
    "12345678901234567",
    "9007199254740993",
    "-9223372036854775808",
    "1e21",
    "2.2250738585072014e-308",
];

/// Writes the shapes into one database.
pub(crate) struct Shapes<'a> {
    pub(crate) pen: Pen<'a>,
    pub(crate) random: Random,
    /// Relative expiries count from here, milliseconds since the epoch.
    pub(crate) reference_ms: i64,
    pub(crate) near_expiries: bool,
    pub(crate) field_expiries: bool,
}

impl Shapes<'_> {
    /// One key of every shape.
    pub(crate) fn write_all(&mut self) -> Result<()> {
        self.strings()?;
        self.lists()?;
        self.sets()?;
        self.sorted_sets()?;
        self.hashes()?;
        self.hash_field_expiries()?;
        self.streams()?;
        self.sketches()?;
        self.awkward_names()?;
        self.expiries()
    }

    /// The collections whose size alone is the difficulty.
    pub(crate) fn write_large(&mut self, count: u64) -> Result<()> {
        for first in (0..count).step_by(ELEMENTS_PER_COMMAND as usize) {
            let numbers = first..first + ELEMENTS_PER_COMMAND;
            let elements: Vec<String> = numbers.clone().map(|number| format!("element:{number}")).collect();
            self.pen.put("RPUSH", b"large:list", &elements)?;
            self.pen.put("SADD", b"large:set", &elements)?;
            let scores: Vec<String> =
                numbers.clone().map(|number| format!("{}.5", number * 7919 % count)).collect();
            let scored = scores.iter().zip(&elements).flat_map(|(score, element)| [score, element]);
            self.pen.put("ZADD", b"large:zset", scored)?;
            let fields =
                numbers.clone().flat_map(|number| [format!("field:{number}"), format!("value:{number}")]);
            self.pen.put("HSET", b"large:hash", fields)?;
        }
        for entry in 1..=count / ELEMENTS_PER_ENTRY {
            let id = format!("{}-{}", 1_000 + entry / 3, entry % 3);
            self.pen.put("XADD", b"large:stream", [id.as_str(), "n", id.as_str(), "kind", "large"])?;
        }
        self.pen.put("XGROUP CREATE", b"large:stream", ["readers", "0"])
    }

    /// Random keys of all types until there are `keys` of them.
    pub(crate) fn fill_up_to(&mut self, keys: u64) -> Result<()> {
        let mut number = 0;
        while self.pen.keys() < keys {
            number += 1;
            let key = match number % 7 {
                0 => format!("{{user:{}}}:{number}", number % 97),
                _ => format!("fill:{number}"),
            };
            self.random_key(key.as_bytes(), number)?;
            self.random_expiry(key.as_bytes())?;
        }
        Ok(())
    }

    fn random_key(&mut self, key: &[u8], number: u64) -> Result<()> {
        let count = self.random.between(1, 20);
        let elements: Vec<Vec<u8>> = (0..count).map(|_| self.random.value(60)).collect();
        match number % 8 {
            0 => self.pen.put("RPUSH", key, elements),
            1 => self.pen.put("SADD", key, elements),
            2 => {
                let scored = elements.into_iter().enumerate().flat_map(|(rank, element)| {
                    [format!("{}", rank as f64 * 1.1 - 3.0).into_bytes(), element]
                });
                self.pen.put("ZADD", key, scored)
            }
            3 => self.write_hash(key, elements),
            4 => {
                for (sequence, element) in elements.iter().enumerate() {
                    let id = format!("{number}-{}", sequence + 1);
                    self.pen.put("XADD", key, [id.as_bytes(), b"field", element])?;
                }
                Ok(())
            }
            _ => {
                let longest = if number % 50 == 5 { 20_000 } else { 200 };
                let value = self.random.value(longest);
                self.pen.put("SET", key, [value])
            }
        }
    }

    fn write_hash(&mut self, key: &[u8], values: Vec<Vec<u8>>) -> Result<()> {
        let pairs = values
            .into_iter()
            .enumerate()
            .flat_map(|(number, value)| [format!("field:{number}").into_bytes(), value]);
        self.pen.put("HSET", key, pairs)
    }

    fn random_expiry(&mut self, key: &[u8]) -> Result<()> {
        let expires_at_ms = match self.random.below(20) {
            0..4 => FAR_MS + self.random.below(1_000_000_000) as i64,
            4..7 => self.reference_ms + HOUR_MS + self.random.below(1_000) as i64,
            7..9 if self.near_expiries => self.reference_ms + self.near_ms(),
            _ => return Ok(()),
        };
        self.expire(key, expires_at_ms)
    }

    fn near_ms(&mut self) -> i64 {
        1_000 + self.random.below(7_000) as i64
    }

    fn expire(&mut self, key: &[u8], expires_at_ms: i64) -> Result<()> {
        self.pen.put("PEXPIREAT", key, [expires_at_ms.to_string()])
    }

    fn strings(&mut self) -> Result<()> {
        let all_bytes: Vec<u8> = (0..=255).collect();
        let fixed: [(&str, &[u8]); 18] = [
            ("empty", b""),
            ("one", b"x"),
            ("nul", b"\0"),
            ("crlf", b"\r\n"),
            ("binary", b"a\0b\r\nc\xffd\x80"),
            ("all-bytes", &all_bytes),
            ("reply", b"$-1\r\n+OK\r\n*2\r\n"),
            ("utf-8", "Regenbrachvogel, \u{9df8}, \u{1f426}".as_bytes()),
            ("int:zero", b"0"),
            ("int:shared", b"9999"),
            ("int:unshared", b"10000"),
            ("int:minus", b"-1"),
            ("int:max", b"9223372036854775807"),
            ("int:min", b"-9223372036854775808"),
            ("int:too-large", b"9223372036854775808"),
            ("int:leading-zeros", b"007"),
            ("int:spaces", b" 42 "),
            ("float", b"3.0000000000000001"),
        ];
        for (name, value) in fixed {
            self.pen.put("SET", format!("string:{name}").as_bytes(), [value])?;
        }
        // 44 and 45 bytes are the two sides of the embedded encoding's limit.
        for bytes in [44, 45, 63, 64, 100, 16_383, 16_384, 65_536, 1 << 20] {
            let random = self.random.bytes(bytes);
            self.pen.put("SET", format!("string:random:{bytes}").as_bytes(), [random])?;
            let text = self.random.text(bytes);
            self.pen.put("SET", format!("string:text:{bytes}").as_bytes(), [text])?;
        }
        let large = self.random.bytes(8 << 20);
        self.pen.put("SET", b"string:random:8MiB", [large])?;
        self.pen.put("SET", b"string:zeros", [vec![0; 100_000]])?;
        self.pen.put("APPEND", b"string:appended", ["made by APPEND"])?;
        self.pen.put("SETRANGE", b"string:padded", ["1000", "made by SETRANGE"])?;
        self.pen.put("INCRBYFLOAT", b"string:incremented", ["10.5"])
    }

    fn lists(&mut self) -> Result<()> {
        self.pen.put("RPUSH", b"list:one", ["only"])?;
        self.pen.put("RPUSH", b"list:one-empty", [""])?;
        self.pen.put("RPUSH", b"list:order", ["b", "a", "c", "a", "", "b"])?;
        self.pen.put(
            "RPUSH",
            b"list:numbers",
            ["1", "-1", "127", "4095", "32768", "9223372036854775807", "01"],
        )?;
        self.pen.put("LPUSH", b"list:binary", [&b"\0"[..], b"\r\n", b"\xff\xfe", b""])?;
        let many: Vec<Vec<u8>> = (0..2_000).map(|_| self.random.value(80)).collect();
        self.pen.put("RPUSH", b"list:many", many)?;
        let long: Vec<Vec<u8>> = (0..8).map(|_| self.random.bytes(20_000)).collect();
        self.pen.put("RPUSH", b"list:long-elements", long)?;
        let huge = self.random.text(1 << 20);
        self.pen.put("RPUSH", b"list:huge-element", [&b"before"[..], &huge, b"after"])
    }

    fn sets(&mut self) -> Result<()> {
        self.pen.put("SADD", b"set:one", ["only"])?;
        self.pen.put("SADD", b"set:one-int", ["7"])?;
        self.pen.put("SADD", b"set:intset:16", (-50..50).map(|number| number.to_string()))?;
        self.pen.put("SADD", b"set:intset:32", ["1", "100000", "-100000"])?;
        self.pen.put("SADD", b"set:intset:64", ["9223372036854775807", "-9223372036854775808", "0"])?;
        self.pen.put("SADD", b"set:ints-beyond-intset", (0..600).map(|number| number.to_string()))?;
        self.pen.put("SADD", b"set:small", [&b""[..], b"a", b"1", b"01", b"\0\xff\r\n"])?;
        let members: Vec<Vec<u8>> = (0..1_000).map(|_| self.random.bytes(12)).collect();
        self.pen.put("SADD", b"set:many", members)?;
        let long = self.random.bytes(5_000);
        self.pen.put("SADD", b"set:long-member", [&long[..], b"short"])
    }

    fn sorted_sets(&mut self) -> Result<()> {
        self.pen.put("ZADD", b"zset:one", ["1.5", "only"])?;
        self.pen.put("ZADD", b"zset:one-inf", ["-inf", ""])?;
        let special =
            || SCORES.iter().enumerate().flat_map(|(rank, score)| [score.to_string(), format!("m{rank}")]);
        self.pen.put("ZADD", b"zset:scores:small", special())?;
        self.pen.put("ZADD", b"zset:scores:large", special())?;
        let plain = (0..500).flat_map(|number| [format!("{}", number % 17), format!("plain:{number}")]);
        self.pen.put("ZADD", b"zset:scores:large", plain)?;
        let exact: Vec<String> = (0..300)
            .flat_map(|number| {
                let score = f64::from_bits(self.random.next());
                let score = if score.is_finite() { score } else { number as f64 };
                [format!("{score:e}"), format!("exact:{number}")]
            })
            .collect();
        self.pen.put("ZADD", b"zset:exact", exact)?;
        self.pen.put(
            "ZADD",
            b"zset:ties",
            ["0", "b", "0", "a", "0", "", "0", "\u{e9}", "0", "10", "0", "9"],
        )?;
        self.pen.put("ZADD", b"zset:binary", [&b"1"[..], b"\0", b"2", b"\r\n", b"3", b"\xff"])?;
        let places = ["13.361389", "38.115556", "Palermo", "15.087269", "37.502669", "Catania"];
        self.pen.put("GEOADD", b"geo:sicily", places)
    }

    fn hashes(&mut self) -> Result<()> {
        self.pen.put("HSET", b"hash:one", ["field", "value"])?;
        self.pen.put("HSET", b"hash:one-empty", ["", ""])?;
        let small: [&[u8]; 8] = [b"a", b"", b"", b"b", b"\0\r\n", b"\xff\0", b"int", b"123456789"];
        self.pen.put("HSET", b"hash:small", small)?;
        let many: Vec<Vec<u8>> = (0..1_000).map(|_| self.random.value(40)).collect();
        self.write_hash(b"hash:many", many)?;
        let long = self.random.bytes(70_000);
        self.pen.put("HSET", b"hash:long", [&b"long"[..], &long, &long[..100], b"by a long name"])
    }

    /// Hashes whose fields expire, on servers that have it.
    fn hash_field_expiries(&mut self) -> Result<()> {
        if !self.field_expiries {
            return Ok(());
        }
        for (key, fields, expiring) in [
            ("hash:ttl:one", 1, 1),
            ("hash:ttl:some", 5, 2),
            ("hash:ttl:all", 5, 5),
            ("hash:ttl:large", 700, 300),
            ("hash:ttl:and-key", 4, 2),
        ] {
            let values: Vec<Vec<u8>> = (0..fields).map(|_| self.random.value(30)).collect();
            self.write_hash(key.as_bytes(), values)?;
            for field in 0..expiring {
                let expires_at_ms = match field % 2 {
                    0 => FAR_MS + field,
                    _ => self.reference_ms + HOUR_MS + field,
                };
                self.expire_field(key, field, expires_at_ms)?;
            }
        }
        self.expire(b"hash:ttl:and-key", FAR_MS + 17)?;
        if self.near_expiries {
            for (key, fields, expiring) in [("hash:ttl:near-some", 6, 3), ("hash:ttl:near-all", 3, 3)] {
                let values: Vec<Vec<u8>> = (0..fields).map(|_| self.random.value(30)).collect();
                self.write_hash(key.as_bytes(), values)?;
                for field in 0..expiring {
                    let expires_at_ms = self.reference_ms + self.near_ms();
                    self.expire_field(key, field, expires_at_ms)?;
                }
            }
        }
        Ok(())
    }

    fn expire_field(&mut self, key: &str, field: i64, expires_at_ms: i64) -> Result<()> {
        let args = [expires_at_ms.to_string(), "FIELDS".into(), "1".into(), format!("field:{field}")];
        self.pen.put("HPEXPIREAT", key.as_bytes(), args)
    }

    /// HyperLogLogs and bitmaps: strings that are more than strings.
    fn sketches(&mut self) -> Result<()> {
        self.pen.put("PFADD", b"hll:empty", [""; 0])?;
        self.pen.put("PFADD", b"hll:sparse", ["a", "b", "c"])?;
        self.pen.put("PFADD", b"hll:dense", (0..10_000).map(|number| format!("visitor:{number}")))?;
        self.pen.put("SETBIT", b"bitmap:one", ["7", "1"])?;
        for _ in 0..200 {
            let bit = self.random.below(800_000).to_string();
            self.pen.put("SETBIT", b"bitmap:sparse", [bit.as_str(), "1"])?;
        }
        self.pen.put("BITFIELD", b"bitmap:fields", ["SET", "i5", "100", "-7", "SET", "u63", "200", "12345"])
    }

    /// Every awkward name with a value of each type, except where the name itself is the point.
    fn awkward_names(&mut self) -> Result<()> {
        let mut names: Vec<Vec<u8>> = [
            &b""[..],
            b" ",
            b"with spaces",
            b"two\nlines",
            b"crlf\r\n",
            b"tab\t",
            b"nul\0inside",
            b"\0",
            b"\xff\xfe\x80",
            b"*3\r\n$3\r\nSET\r\n",
            b"\"quoted\"",
            b"back\\slash",
            b"glob*?[a-z]",
            b"{}",
            b"{a}",
            b"a}b",
            b"{b",
            b"{}{x}",
            b"{{c}}",
            b"x{tag}y",
            b"x{tag}z",
            b"GET",
            b"FLUSHALL",
            b"--replace",
            b"-1",
            b"0",
            b"+inf",
            b"OK",
            b"nil",
            b"(nil)",
        ]
        .map(<[u8]>::to_vec)
        .to_vec();
        names.push("Brachv\u{f6}gel".into());
        names.push("\u{9df8}\u{1f426}".into());
        names.push(self.random.text(10 << 10));
        names.push(self.random.bytes(10 << 10));
        for (number, name) in names.iter().enumerate() {
            // The plain name rotates through the types; with a suffix every name has two more.
            let mut suffixed = [name.clone(), name.clone(), name.clone()];
            suffixed[1].extend_from_slice(b"\0:1");
            suffixed[2].extend_from_slice(b"\r\n2");
            for (offset, key) in suffixed.iter().enumerate() {
                self.random_key(key, (number + offset) as u64)?;
            }
        }
        Ok(())
    }

    /// Every type with every kind of expiry.
    fn expiries(&mut self) -> Result<()> {
        let mut kinds = vec![
            ("far", FAR_MS),
            ("far-round", FAR_MS - 123),
            ("beyond-double", BEYOND_DOUBLE_MS),
            ("hour", self.reference_ms + HOUR_MS),
        ];
        if self.near_expiries {
            kinds.extend([("near:1", self.reference_ms + 1_001), ("near:2", self.reference_ms + 4_567)]);
        }
        for (kind, expires_at_ms) in kinds {
            for number in 0..6 {
                let key = format!("expiry:{kind}:{number}");
                self.random_key(key.as_bytes(), number)?;
                self.expire(key.as_bytes(), expires_at_ms + number as i64)?;
            }
        }
        self.pen.put("SET", b"expiry:persisted", ["stays", "PX", "100000"])?;
        self.pen.put("PERSIST", b"expiry:persisted", [""; 0])
    }
}
