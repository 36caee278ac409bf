//! Text that a terminal only shows.

use std::borrow::Cow;

/// Colours that are ours: see [`crate::screen`].
pub(crate) const COLOURS: [&str; 4] = ["\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"];

/// A text that a terminal only shows. Servers' words are part of what is said, and may hold what sets its
/// title, moves its cursor or turns the direction of writing round: that is shown as its number. In JSON it
/// means the same as before.
pub fn plain(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let (mut shown, mut rest) = (String::with_capacity(text.len() + 16), text);
    while let Some(c) = rest.chars().next() {
        let colour = COLOURS.into_iter().find(|colour| rest.starts_with(colour));
        let taken = colour.map_or(c.len_utf8(), str::len);
        match colour {
            None if acts(c) => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => shown.push_str(&rest[..taken]),
        }
        rest = &rest[taken..];
    }
    Cow::Owned(shown)
}

/// As a shell takes it for one word.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_do_is_shown_instead() {
        assert_eq!(plain("ERR \u{1b}]0;owned\u{7} no"), "ERR \\u001b]0;owned\\u0007 no");
        assert_eq!(plain("a\rb\u{9b}2J\u{202e}c\u{7f}"), "a\\u000db\\u009b2J\\u202ec\\u007f");
        let ours = "\u{1b}[31mbroken\u{1b}[0m\n\tkéys";
        assert!(matches!(plain(ours), Cow::Borrowed(_)) || plain(ours) == ours);
    }
}
