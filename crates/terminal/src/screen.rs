//! What a stream can show, and text that fits it.

use std::io::IsTerminal;

use textwrap::core::{Word, display_width};
use textwrap::{Options, WordSeparator, WordSplitter, wrap};

use crate::plain::COLOURS;
use crate::row::truncate;

/// Width of what is no terminal: everything fits.
const UNBOUNDED: usize = usize::MAX;

/// Width of a terminal that does not report it.
const WIDTH_DEFAULT: usize = 80;

/// Height of one that does not.
const HEIGHT_DEFAULT: usize = 24;

/// Width of the labels at the beginning of lines, with the gap behind them: what is wrapped goes on below the
/// text.
const LABEL: usize = 9;

/// The label of errors is shorter.
const ERROR: &str = "error: ";

/// A longer list, of slots for example, may be wrapped after its commas.
const WORD_MAX: usize = 24;

/// How a stream may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Columns.
    pub width: usize,
    /// Whether colours are shown.
    pub colour: bool,
}

impl Screen {
    /// What standard output is: colours only on a terminal, and not where `NO_COLOR` is set.
    pub fn of_stdout() -> Screen {
        let stdout = std::io::stdout();
        let size = stdout.is_terminal().then(|| terminal_size::terminal_size_of(&stdout));
        Screen::of_size(size)
    }

    /// The same of standard error.
    pub fn of_stderr() -> Screen {
        let stderr = std::io::stderr();
        let size = stderr.is_terminal().then(|| terminal_size::terminal_size_of(&stderr));
        Screen::of_size(size)
    }

    /// `None` where there is no terminal, `Some(None)` where it does not report its size.
    fn of_size(size: Option<Option<(terminal_size::Width, terminal_size::Height)>>) -> Screen {
        let Some(size) = size else { return Screen { width: UNBOUNDED, colour: false } };
        let width = size.map_or(WIDTH_DEFAULT, |(width, _)| usize::from(width.0));
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Screen { width: if width == 0 { WIDTH_DEFAULT } else { width }, colour: !no_colour }
    }

    /// Text that is good news.
    pub fn good(&self, text: &str) -> String {
        self.painted(text, 32)
    }

    /// Text that is bad news.
    pub fn bad(&self, text: &str) -> String {
        self.painted(text, 31)
    }

    /// Text that stands back.
    pub fn faint(&self, text: &str) -> String {
        self.painted(text, 2)
    }

    fn painted(&self, text: &str, code: u8) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// The lines of a text, as with [`Screen::wrapped`], of which none is wider than the screen: words that
    /// would be are cut.
    pub fn fitted(&self, text: &str) -> Vec<String> {
        self.wrapped(text).lines().map(|line| truncate(line, self.width)).collect()
    }

    /// The lines of a text, each wrapped at words so that it fits; what is wrapped goes on where its first
    /// line has its text, behind the label. A word that is wider than the screen is left to the terminal, and
    /// JSON is: programs read it.
    pub fn wrapped(&self, text: &str) -> String {
        if self.width == UNBOUNDED || text.starts_with("{\"") {
            return text.to_owned();
        }
        text.split('\n').map(|line| self.wrapped_line(line)).collect::<Vec<_>>().join("\n")
    }

    fn wrapped_line(&self, line: &str) -> String {
        if display_width(line) <= self.width {
            return line.to_owned();
        }
        let own = line.len() - line.trim_start_matches(' ').len();
        let indentation = match own {
            0 if line.starts_with(ERROR) => ERROR.len(),
            0 if has_label(line) => LABEL,
            own => own,
        };
        let indentation = " ".repeat(indentation.min(self.width / 3));
        let options = Options::new(self.width)
            .subsequent_indent(&indentation)
            .break_words(false)
            .word_splitter(WordSplitter::NoHyphenation)
            .word_separator(WordSeparator::Custom(words));
        // A question ends with a blank, behind which the answer is typed.
        let blanks = &line[line.trim_end_matches(' ').len()..];
        wrap(line, options).join("\n") + blanks
    }
}

/// Lines that standard output has room for; 24 where it does not report that.
pub fn height_of_stdout() -> usize {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    size.map(|(_, height)| usize::from(height.0)).filter(|height| *height > 0).unwrap_or(HEIGHT_DEFAULT)
}

/// Whether a line begins with a label rather than with a sentence: a gap ends before its text, or right
/// behind a long one.
fn has_label(line: &str) -> bool {
    let shown = COLOURS.iter().fold(line.to_owned(), |line, colour| line.replace(colour, ""));
    shown.chars().skip(LABEL - 1).take(2).any(|c| c == ' ')
}

/// Words are what stands between blanks; long lists have their items for words.
fn words(line: &str) -> Box<dyn Iterator<Item = Word<'_>> + '_> {
    let mut rest = line;
    let pieces = std::iter::from_fn(move || {
        let end = rest.find(' ').unwrap_or(rest.len());
        let gap = rest[end..].find(|c| c != ' ').unwrap_or(rest.len() - end);
        let (piece, behind) = rest.split_at(end + gap);
        rest = behind;
        (!piece.is_empty()).then_some((piece, end))
    });
    Box::new(pieces.flat_map(|(piece, length)| match length > WORD_MAX {
        true => piece.split_inclusive(',').map(Word::from).collect(),
        false => vec![Word::from(piece)],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTHS: [usize; 4] = [50, 80, 120, 200];

    fn screen(width: usize) -> Screen {
        Screen { width, colour: false }
    }

    #[test]
    fn text_is_wrapped_at_words_below_itself() {
        let text = "problem  nobody owns slot 5: it was taken for the last time";
        assert_eq!(
            screen(36).wrapped(text),
            "problem  nobody owns slot 5: it was\n         taken for the last time"
        );
        assert_eq!(screen(200).wrapped(text), text);
        assert_eq!(
            screen(25).wrapped("Move 2,000 slots in the cluster?"),
            "Move 2,000 slots in the\ncluster?"
        );
        assert_eq!(
            screen(30).wrapped("error: this server is not part of a cluster"),
            "error: this server is not part\n       of a cluster"
        );
        assert_eq!(
            screen(30).wrapped("         name any node of a cluster"),
            "         name any node of a\n         cluster"
        );
    }

    #[test]
    fn no_word_is_broken_at_any_width() {
        let text = "writers  of a source are paused up to 1,234,567 times, for 500 ms at most; reads go on, \
            and some \
                    clients may see CLUSTERDOWN for some milliseconds each time a batch of slots is handed \
                    over to its new owner";
        for width in WIDTHS {
            let wrapped = screen(width).wrapped(text);
            assert!(wrapped.lines().all(|line| display_width(line) <= width), "{width}:\n{wrapped}");
            assert!(wrapped.split_whitespace().eq(text.split_whitespace()), "{width}:\n{wrapped}");
            assert!(
                wrapped.lines().skip(1).all(|line| line.starts_with(&" ".repeat(9))),
                "{width}:\n{wrapped}"
            );
        }
    }

    #[test]
    fn lists_are_wrapped_after_commas() {
        let text = "move     0-100,200-300,400-500,600-700,800-900,1000-1100 to there";
        assert_eq!(
            screen(40).wrapped(text),
            "move     0-100,200-300,400-500,600-700,\n         800-900,1000-1100 to there"
        );
    }

    #[test]
    fn colours_take_no_room_and_programs_get_lines() {
        let colourful = Screen { width: 30, colour: true };
        let text = format!("{}    well, it is as it is here", colourful.bad("wrong"));
        assert_eq!(text.len(), 43);
        assert_eq!(colourful.wrapped(&text), text.replace(" here", "\n         here"));
        let json = r#"{"event": "report", "text": "long enough to be wrapped"}"#;
        assert_eq!(colourful.wrapped(json), json);
        assert_eq!(screen(UNBOUNDED).wrapped(&"word ".repeat(1_000)), "word ".repeat(1_000));
        assert_eq!(screen(30).good("well"), "well");
        assert!(screen(30).wrapped("move all these slots to the other node? [y/N] ").ends_with("[y/N] "));
        assert_eq!(colourful.bad("ill"), "\x1b[31mill\x1b[0m");
    }
}
