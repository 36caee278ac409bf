//! Key patterns, with the semantics that the servers use for `KEYS` and `SCAN … MATCH`.
//!
//! | in a pattern | matches |
//! |---|---|
//! | `*` | any bytes, also none |
//! | `?` | one byte |
//! | `[abc]`, `[a-z]`, `[z-a]` | one byte of the class; the ends of a range may be in either order |
//! | `[^abc]` | one byte that is not in the class |
//! | `\` and a byte | that byte, inside of classes as well |
//! | any other byte | itself |
//!
//! The corners are as the servers have them: a class without its `]` goes to the end of the pattern, `[]`
//! matches nothing and `[^]` one byte of any kind, `]` may not come first in a class, a `\` at the end of the
//! pattern stands for itself, and the key without a name is matched by the pattern `*` and by the empty
//! pattern only (not by `**`).
//!
//! One thing is not the same on all servers: a range with an ASCII and a non-ASCII end depends on the sign of
//! C's `char`, that is, on the server's processor. Here bytes have no sign. [`Pattern::is_portable`] says
//! whether a server can be relied on to see the pattern as we do.

use crate::slot::Slot;

/// A compiled key pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    source: Vec<u8>,
    tokens: Vec<Token>,
    /// The bytes of the leading [`Token::Byte`]s.
    literal_prefix: Vec<u8>,
    portable: bool,
}

/// One step of a pattern. All but `Star` match exactly one byte.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Star,
    Any,
    Byte(u8),
    Class(ByteSet),
}

impl Token {
    fn matches(&self, byte: u8) -> bool {
        match self {
            Token::Star | Token::Any => true,
            Token::Byte(expected) => *expected == byte,
            Token::Class(class) => class.contains(byte),
        }
    }
}

/// Servers give up, with "no match", below this many nested stars.
const STARS_MAX: usize = 1_000;

impl Pattern {
    /// Compiles a pattern. Any bytes are a pattern; there is no invalid one.
    pub fn new(source: &[u8]) -> Pattern {
        let mut tokens = Vec::new();
        let mut portable = true;
        let mut rest = source;
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            match first {
                // Stars in a row are one.
                b'*' if tokens.last() == Some(&Token::Star) => {}
                b'*' => tokens.push(Token::Star),
                b'?' => tokens.push(Token::Any),
                b'[' => {
                    let class = parse_class(rest);
                    rest = class.rest;
                    portable &= class.portable;
                    tokens.push(Token::Class(class.set));
                }
                b'\\' => match rest.split_first() {
                    Some((&escaped, after)) => {
                        rest = after;
                        tokens.push(Token::Byte(escaped));
                    }
                    None => tokens.push(Token::Byte(b'\\')),
                },
                byte => tokens.push(Token::Byte(byte)),
            }
        }
        portable &= tokens.iter().filter(|token| **token == Token::Star).count() < STARS_MAX;
        let literal_prefix = tokens
            .iter()
            .map_while(|token| match token {
                Token::Byte(byte) => Some(*byte),
                _ => None,
            })
            .collect();
        Pattern { source: source.to_vec(), tokens, literal_prefix, portable }
    }

    /// The pattern as it was given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.source
    }

    /// Whether `key` matches.
    ///
    /// The time is bounded by the product of both lengths, whatever the pattern; nothing is allocated.
    pub fn matches(&self, key: &[u8]) -> bool {
        if key.is_empty() {
            // Servers take `*` as "no pattern", and compare every other one as long as there are bytes left.
            return self.tokens.is_empty() || self.source == b"*";
        }
        let Some(rest) = key.strip_prefix(self.literal_prefix.as_slice()) else { return false };
        match &self.tokens[self.literal_prefix.len()..] {
            [] => rest.is_empty(),
            [Token::Star] => true,
            tokens => matches_tokens(tokens, rest),
        }
    }

    /// Whether the pattern is `*`, which matches every key.
    pub fn is_match_all(&self) -> bool {
        self.source == b"*"
    }

    /// Whether the pattern matches one key only, which then is [`Pattern::literal_prefix`].
    pub fn is_literal(&self) -> bool {
        self.literal_prefix.len() == self.tokens.len()
    }

    /// The bytes that every matching key starts with, with escapes resolved; possibly none.
    pub fn literal_prefix(&self) -> &[u8] {
        &self.literal_prefix
    }

    /// Whether every server sees this pattern as [`Pattern::matches`] does; see the head of this module.
    pub fn is_portable(&self) -> bool {
        self.portable
    }

    /// The slot that all matching keys are in, if the pattern alone says so: it is literal, or has a literal
    /// hash tag that no other brace can come before.
    pub fn tag_slot(&self) -> Option<Slot> {
        if self.is_literal() {
            return Some(Slot::of_key(&self.literal_prefix));
        }
        let open = self.tokens.iter().position(|token| token.matches(b'{'))?;
        if self.tokens[open] != Token::Byte(b'{') {
            return None;
        }
        let mut tag = Vec::new();
        for token in &self.tokens[open + 1..] {
            match token {
                // An empty tag: the whole key is hashed.
                Token::Byte(b'}') if tag.is_empty() => return None,
                Token::Byte(b'}') => return Some(Slot::of_key(&tag)),
                Token::Byte(byte) => tag.push(*byte),
                _ => return None,
            }
        }
        None
    }
}

impl std::fmt::Display for Pattern {
    /// The pattern as it was given, with bytes that cannot be printed as `\x…`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for chunk in self.source.utf8_chunks() {
            f.write_str(chunk.valid())?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Matches by going back to the last star only: what an earlier star could do by taking more, the later one
/// can do as well, so nothing is tried twice at the same place.
fn matches_tokens(tokens: &[Token], key: &[u8]) -> bool {
    let (mut token_at, mut key_at) = (0, 0);
    // Where to go on when a comparison fails: after the last star, with that star taking one byte more.
    let mut retry: Option<(usize, usize)> = None;
    while key_at < key.len() {
        match tokens.get(token_at) {
            Some(Token::Star) => {
                token_at += 1;
                retry = Some((token_at, key_at));
            }
            Some(token) if token.matches(key[key_at]) => {
                token_at += 1;
                key_at += 1;
            }
            _ => match &mut retry {
                None => return false,
                Some((after_star, from)) => {
                    *from += 1;
                    (token_at, key_at) = (*after_star, *from);
                }
            },
        }
    }
    tokens[token_at..].iter().all(|token| *token == Token::Star)
}

/// A class as it was read from a pattern.
struct Class<'a> {
    set: ByteSet,
    portable: bool,
    /// What follows the class.
    rest: &'a [u8],
}

/// Reads a class; `rest` starts after its `[`.
fn parse_class(mut rest: &[u8]) -> Class<'_> {
    let mut set = ByteSet::default();
    let mut portable = true;
    let negated = rest.first() == Some(&b'^');
    if negated {
        rest = &rest[1..];
    }
    loop {
        rest = match rest {
            [] => break,
            [b'\\', escaped, after @ ..] => {
                set.insert(*escaped);
                after
            }
            [b']', after @ ..] => {
                rest = after;
                break;
            }
            // The end of a range is taken as it is, even a `]` or a `\`.
            [start, b'-', end, after @ ..] => {
                portable &= start.is_ascii() == end.is_ascii();
                for byte in *start.min(end)..=*start.max(end) {
                    set.insert(byte);
                }
                after
            }
            [byte, after @ ..] => {
                set.insert(*byte);
                after
            }
        };
    }
    if negated {
        set.invert();
    }
    Class { set, portable, rest }
}

/// A set of byte values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ByteSet([u64; 4]);

impl ByteSet {
    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
    }

    fn invert(&mut self) {
        for word in &mut self.0 {
            *word = !*word;
        }
    }
}

/// True if a `[` outside of an escape is never closed. Servers read such a class up to the end of the
/// pattern, which no user means.
pub fn leaves_class_open(pattern: &[u8]) -> bool {
    let mut open = false;
    let mut bytes = pattern.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                bytes.next();
            }
            b'[' => open = true,
            b']' => open = false,
            _ => {}
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &[u8], key: &[u8]) -> bool {
        Pattern::new(pattern).matches(key)
    }

    /// The definition, read from the pattern's bytes with the byte at hand, by plain recursion. It shares
    /// nothing with the compiled form: classes are decided while they are read.
    fn reference(pattern: &[u8], key: &[u8]) -> bool {
        if key.is_empty() {
            return pattern.is_empty() || pattern == b"*";
        }
        reference_step(pattern, key)
    }

    fn reference_step(pattern: &[u8], key: &[u8]) -> bool {
        let Some((&first, rest)) = pattern.split_first() else { return key.is_empty() };
        if first == b'*' {
            return (0..=key.len()).any(|taken| reference_step(rest, &key[taken..]));
        }
        let Some((&byte, key_rest)) = key.split_first() else { return false };
        match first {
            b'?' => reference_step(rest, key_rest),
            b'[' => {
                let (admitted, after) = reference_class(rest, byte);
                admitted && reference_step(after, key_rest)
            }
            b'\\' if !rest.is_empty() => rest[0] == byte && reference_step(&rest[1..], key_rest),
            literal => literal == byte && reference_step(rest, key_rest),
        }
    }

    fn reference_class(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
        let negated = pattern.starts_with(b"^");
        let mut at = usize::from(negated);
        let mut admitted = false;
        while at < pattern.len() && pattern[at] != b']' {
            let left = pattern.len() - at;
            if pattern[at] == b'\\' && left >= 2 {
                admitted |= pattern[at + 1] == byte;
                at += 2;
            } else if left >= 3 && pattern[at + 1] == b'-' {
                let (low, high) = (pattern[at].min(pattern[at + 2]), pattern[at].max(pattern[at + 2]));
                admitted |= low <= byte && byte <= high;
                at += 3;
            } else {
                admitted |= pattern[at] == byte;
                at += 1;
            }
        }
        (admitted != negated, &pattern[(at + 1).min(pattern.len())..])
    }

    #[test]
    fn classes_must_be_closed() {
        for closed in ["*", "a[bc]d", r"a\[b", "x]", "[^a-z]*"] {
            assert!(!leaves_class_open(closed.as_bytes()), "{closed}");
        }
        for open in ["[", "a[bc", r"[a\]"] {
            assert!(leaves_class_open(open.as_bytes()), "{open}");
        }
    }

    #[test]
    fn what_the_servers_say() {
        let cases: [(&[u8], &[u8], bool); 56] = [
            (b"*", b"anything", true),
            (b"*", b"", true),
            (b"**", b"", false),
            (b"", b"", true),
            (b"", b"a", false),
            (b"?", b"", false),
            (b"a*", b"a", true),
            (b"a**", b"a", true),
            (b"a*", b"abc", true),
            (b"a*", b"ba", false),
            (b"*a", b"a", true),
            (b"*a", b"ba", true),
            (b"*a", b"ab", false),
            (b"a*c", b"abbc", true),
            (b"a*c", b"abcb", false),
            (b"a*b*c", b"aXbYbZc", true),
            (b"a?c", b"abc", true),
            (b"a?c", b"ac", false),
            (b"h[ae]llo", b"hello", true),
            (b"h[ae]llo", b"hillo", false),
            (b"h[^e]llo", b"hallo", true),
            (b"h[^e]llo", b"hello", false),
            (b"h[a-b]llo", b"hbllo", true),
            (b"h[a-b]llo", b"hcllo", false),
            (b"h[b-a]llo", b"hallo", true),
            (b"[!a]", b"!", true),
            (b"[!a]", b"b", false),
            // Escapes.
            (b"\\*", b"*", true),
            (b"\\*", b"a", false),
            (b"a\\", b"a\\", true),
            (b"a\\", b"a", false),
            (b"\\\\", b"\\", true),
            (b"\\a", b"a", true),
            (b"[\\]]", b"]", true),
            (b"[\\]]", b"\\", false),
            (b"[\\^a]", b"^", true),
            (b"[a\\-c]", b"-", true),
            (b"[a\\-c]", b"b", false),
            // An escaped byte does not start a range.
            (b"[\\a-c]", b"b", false),
            (b"[\\a-c]", b"-", true),
            (b"[\\", b"\\", true),
            // Classes without an end.
            (b"[", b"[", false),
            (b"[^", b"x", true),
            (b"[abc", b"b", true),
            (b"[abc", b"bc", false),
            (b"x[abc", b"xc", true),
            (b"[a-", b"-", true),
            (b"[a-", b"b", false),
            // The range from `]` to `a`, and then no end.
            (b"[a-]", b"_", true),
            (b"[a-]", b"-", false),
            // The class ends with its first `]`, unless escaped.
            (b"[]", b"]", false),
            (b"[]a]", b"a", false),
            (b"[^]", b"x", true),
            // Bytes.
            (b"\xff\x00*", b"\xff\x00\n", true),
            (b"[\x80-\xff]", b"\xa0", true),
            (b"A", b"a", false),
        ];
        for (pattern, key, expected) in cases {
            let shown = format!("{} on {}", pattern.escape_ascii(), key.escape_ascii());
            assert_eq!(matches(pattern, key), expected, "{shown}");
            assert_eq!(reference(pattern, key), expected, "reference: {shown}");
        }
    }

    #[test]
    fn hostile_patterns_end() {
        // Plain recursion would need more steps for this than can ever be made.
        let pattern = [b"a*".repeat(200), b"b".to_vec()].concat();
        assert!(!matches(&pattern, &b"a".repeat(5_000)));
        assert!(matches(&pattern, &[b"a".repeat(5_000), b"b".to_vec()].concat()));
    }

    #[test]
    fn literals_and_prefixes() {
        let cases: [(&[u8], bool, &[u8]); 7] = [
            (b"", true, b""),
            (b"user:1", true, b"user:1"),
            (b"user\\*", true, b"user*"),
            (b"user:*", false, b"user:"),
            (b"a?b", false, b"a"),
            (b"[a]b", false, b""),
            (b"*", false, b""),
        ];
        for (source, literal, prefix) in cases {
            let pattern = Pattern::new(source);
            assert_eq!(pattern.is_literal(), literal, "{pattern}");
            assert_eq!(pattern.literal_prefix(), prefix, "{pattern}");
            assert_eq!(pattern.as_bytes(), source);
        }
        assert!(Pattern::new(b"*").is_match_all());
        assert!(!Pattern::new(b"**").is_match_all());
    }

    #[test]
    fn portability() {
        for portable in [b"[a-z]".as_slice(), b"[\x80-\xff]", b"a*", b"[\xe9]", b"a-\xff"] {
            assert!(Pattern::new(portable).is_portable(), "{}", portable.escape_ascii());
        }
        assert!(!Pattern::new(b"[a-\xff]").is_portable());
        assert!(!Pattern::new(b"x[^\xff-a]*").is_portable());
        assert!(!Pattern::new(&b"*a".repeat(1_000)).is_portable());
    }

    #[test]
    fn slots_of_patterns() {
        let tag = Some(Slot::of_key(b"tag"));
        let cases: [(&[u8], Option<Slot>); 14] = [
            (b"{tag}*", tag),
            (b"a{tag}*", tag),
            (b"a{t\\ag}*", tag),
            (b"[ab]{tag}?", tag),
            (b"tag", tag),
            (b"{tag*", None),
            (b"{t?g}", None),
            (b"*{tag}", None),
            (b"?{tag}", None),
            (b"[{a]{tag}", None),
            (b"[^a]{tag}", None),
            (b"{}{tag}*", None),
            (b"tag*", None),
            (b"{}*", None),
        ];
        for (pattern, slot) in cases {
            assert_eq!(Pattern::new(pattern).tag_slot(), slot, "{}", pattern.escape_ascii());
        }
        assert_eq!(Pattern::new(b"{}a").tag_slot(), Some(Slot::of_key(b"{}a")));
    }

    #[test]
    fn shown_as_given() {
        assert_eq!(Pattern::new(b"caf\xc3\xa9\xff*").to_string(), "café\\xff*");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Few different bytes, so that matches and odd classes are frequent.
        #[test]
        fn same_as_the_reference(pattern in r"[ab*?\[\]\\^\-]{0,10}", key in r"[ab\]\\^\-]{0,6}") {
            prop_assert_eq!(
                matches(pattern.as_bytes(), key.as_bytes()),
                reference(pattern.as_bytes(), key.as_bytes())
            );
        }

        #[test]
        fn same_as_the_reference_on_bytes(
            pattern in proptest::collection::vec(
                prop_oneof![any::<u8>(), proptest::sample::select(b"*?[]^-\\".as_slice())], 0..12),
            key in proptest::collection::vec(any::<u8>(), 0..5),
        ) {
            prop_assert_eq!(matches(&pattern, &key), reference(&pattern, &key));
        }

        #[test]
        fn an_escaped_key_matches_itself_only(
            key in proptest::collection::vec(any::<u8>(), 0..20),
            other in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let escaped: Vec<u8> = key.iter().flat_map(|&byte| [b'\\', byte]).collect();
            let pattern = Pattern::new(&escaped);
            prop_assert!(pattern.is_literal() && pattern.matches(&key));
            prop_assert_eq!(pattern.literal_prefix(), key.as_slice());
            prop_assert_eq!(pattern.matches(&other), key == other);
        }

        #[test]
        fn matches_have_the_prefix_and_the_slot(pattern in r"[a{}*?]{0,8}", key in r"[a{}]{0,8}") {
            let compiled = Pattern::new(pattern.as_bytes());
            if compiled.matches(key.as_bytes()) {
                prop_assert!(key.as_bytes().starts_with(compiled.literal_prefix()));
                if let Some(slot) = compiled.tag_slot() {
                    prop_assert_eq!(Slot::of_key(key.as_bytes()), slot);
                }
            }
        }
    }
}
