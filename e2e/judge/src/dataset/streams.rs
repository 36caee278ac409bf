//! Streams: what is left of deleted entries, and all that groups remember.

use anyhow::Result;

use super::shapes::Shapes;

/// Delivery time of pending entries: fixed, because the servers' own would differ between two writings.
const DELIVERED_MS: i64 = 1_700_000_000_000;

impl Shapes<'_> {
    pub(super) fn streams(&mut self) -> Result<()> {
        self.fill_stream("stream:one", 1)?;
        self.fill_stream("stream:many", 1_500)?;
        self.stream_fields()?;
        self.stream_leftovers()?;
        self.stream_groups()
    }

    fn fill_stream(&mut self, key: &str, entries: u64) -> Result<()> {
        for entry in 1..=entries {
            let value = self.random.value(30);
            self.pen.put("XADD", key.as_bytes(), [format!("{entry}-1").as_bytes(), b"value", &value])?;
        }
        Ok(())
    }

    /// Fields that repeat, change or are empty: the server packs those with the first entry's names apart.
    fn stream_fields(&mut self) -> Result<()> {
        let key = b"stream:fields";
        self.pen.put("XADD", key, ["1-0", "a", "1", "b", "2"])?;
        self.pen.put("XADD", key, ["1-1", "a", "3", "b", "4"])?;
        self.pen.put("XADD", key, ["1-2", "b", "5", "a", "6"])?;
        self.pen.put("XADD", key, ["1-3", "a", "", "a", "twice", "", "no name"])?;
        self.pen.put("XADD", key, [&b"2-0"[..], b"\0\r\n", b"\xff\x00"])?;
        let long = self.random.bytes(10_000);
        self.pen.put("XADD", key, [b"18446744073709551614-18446744073709551615", &b"long"[..], &long])
    }

    /// Streams whose counters cannot be derived from their entries.
    fn stream_leftovers(&mut self) -> Result<()> {
        self.fill_stream("stream:deleted:middle", 10)?;
        self.pen.put("XDEL", b"stream:deleted:middle", ["3-1", "7-1"])?;
        self.fill_stream("stream:deleted:first", 10)?;
        self.pen.put("XDEL", b"stream:deleted:first", ["1-1"])?;
        self.fill_stream("stream:deleted:last", 10)?;
        self.pen.put("XDEL", b"stream:deleted:last", ["10-1"])?;
        self.fill_stream("stream:deleted:all", 3)?;
        self.pen.put("XDEL", b"stream:deleted:all", ["1-1", "2-1", "3-1"])?;
        self.fill_stream("stream:trimmed", 500)?;
        self.pen.put("XTRIM", b"stream:trimmed", ["MAXLEN", "7"])?;
        self.fill_stream("stream:trimmed:all", 5)?;
        self.pen.put("XTRIM", b"stream:trimmed:all", ["MAXLEN", "0"])?;
        self.fill_stream("stream:setid", 2)?;
        self.pen.put("XSETID", b"stream:setid", ["900-5", "ENTRIESADDED", "77", "MAXDELETEDID", "800-1"])?;
        self.pen.put("XGROUP CREATE", b"stream:empty:group", ["waiting", "$", "MKSTREAM"])?;
        self.pen.put("XGROUP CREATE", b"stream:empty:group-ahead", ["ahead", "500-3", "MKSTREAM"])
    }

    fn stream_groups(&mut self) -> Result<()> {
        let key = b"stream:groups";
        self.fill_stream("stream:groups", 20)?;
        self.pen.put("XGROUP CREATE", key, ["fresh", "0"])?;
        self.pen.put("XGROUP CREATE", key, ["at-end", "$"])?;
        self.pen.put("XGROUP CREATE", key, ["in-middle", "10-1"])?;
        self.pen.put("XGROUP CREATE", key, ["counted", "10-1", "ENTRIESREAD", "10"])?;
        self.pen.put("XGROUP CREATE", key, [&b"\0binary\r\n\xff"[..], b"5-0"])?;
        self.pen.put("XGROUP CREATECONSUMER", key, [&b"\0binary\r\n\xff"[..], b"\xff\0"])?;

        self.pen.put("XGROUP CREATE", key, ["work", "0"])?;
        self.read_group(key, "work", "alice", 5)?;
        self.read_group(key, "work", "bob", 4)?;
        self.pen.put("XGROUP CREATECONSUMER", key, ["work", "idle"])?;
        self.pen.put("XACK", key, ["work", "2-1", "6-1"])?;
        for (entry, consumer) in
            [(1, "alice"), (3, "alice"), (4, "alice"), (5, "carol"), (7, "bob"), (8, "bob"), (9, "bob")]
        {
            self.set_pending(key, "work", consumer, entry)?;
        }
        // Deleted while pending: the group goes on remembering an entry that no read can show.
        self.pen.put("XDEL", key, ["4-1", "8-1"])?;

        let gone = b"stream:groups:all-deleted";
        self.fill_stream("stream:groups:all-deleted", 3)?;
        self.pen.put("XGROUP CREATE", gone, ["work", "0"])?;
        self.read_group(gone, "work", "alice", 3)?;
        for entry in 1..=3 {
            self.set_pending(gone, "work", "alice", entry)?;
        }
        self.pen.put("XTRIM", gone, ["MAXLEN", "0"])?;

        let many = b"stream:groups:many-pending";
        self.fill_stream("stream:groups:many-pending", 400)?;
        for group in ["first", "second"] {
            self.pen.put("XGROUP CREATE", many, [group, "0"])?;
            for consumer in 0..4 {
                self.read_group(many, group, &format!("consumer:{consumer}"), 75)?;
            }
            for entry in 1..=300 {
                self.set_pending(many, group, &format!("consumer:{}", entry % 5), entry)?;
            }
        }
        Ok(())
    }

    fn read_group(&mut self, key: &[u8], group: &str, consumer: &str, count: u64) -> Result<()> {
        let count = count.to_string();
        let words: [&[u8]; 9] = [
            b"XREADGROUP",
            b"GROUP",
            group.as_bytes(),
            consumer.as_bytes(),
            b"COUNT",
            count.as_bytes(),
            b"STREAMS",
            key,
            b">",
        ];
        self.pen.put_words(key, &words)
    }

    /// Gives a pending entry an owner, delivery time and count that follow from its number.
    fn set_pending(&mut self, key: &[u8], group: &str, consumer: &str, entry: i64) -> Result<()> {
        let id = format!("{entry}-1");
        let time = (DELIVERED_MS + entry).to_string();
        let count = (entry % 7 + 1).to_string();
        let args = [group, consumer, "0", &id, "TIME", &time, "RETRYCOUNT", &count, "JUSTID"];
        self.pen.put("XCLAIM", key, args)
    }
}
