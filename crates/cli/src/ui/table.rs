//! Tables that fit the terminal.

use std::io::IsTerminal;

/// Width where standard output is no terminal: as wide as the content needs, within reason.
const WIDTH_UNBOUNDED: usize = 200;

/// Least width of the column that gives way.
const FLEXIBLE_MIN: usize = 12;

/// How standard output may be used.
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
        if !std::io::stdout().is_terminal() {
            return Screen { width: WIDTH_UNBOUNDED, colour: false };
        }
        let width = terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0));
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Screen { width, colour: !no_colour }
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

    /// Breaks a text between words so that it fits beside an indentation, which every line but the first has.
    pub fn wrapped(&self, text: &str, indentation: usize) -> String {
        let room = self.width.saturating_sub(indentation).max(20);
        let (mut lines, mut line_width) = (String::new(), 0);
        for word in text.split(' ') {
            let width = word.chars().count();
            if line_width > 0 && line_width + 1 + width > room {
                lines.push('\n');
                lines.push_str(&" ".repeat(indentation));
                line_width = 0;
            } else if line_width > 0 {
                lines.push(' ');
                line_width += 1;
            }
            lines.push_str(word);
            line_width += width;
        }
        lines
    }
}

/// How a column is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table whose last text column gives way where the terminal is narrow.
#[derive(Debug)]
pub struct Table {
    head: Vec<(&'static str, Align)>,
    flexible: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty one. `flexible` is the column that is cut where the rows would be too long.
    pub fn new(head: &[(&'static str, Align)], flexible: usize) -> Table {
        Table { head: head.to_vec(), flexible, rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.head.len());
        self.rows.push(cells);
    }

    /// The lines, without line ends, the head first; each no wider than `screen`, unless that is too narrow even for
    /// the columns that do not give way.
    pub fn lines(&self, screen: Screen) -> Vec<String> {
        let width_of = |text: &str| text.chars().count();
        let mut widths: Vec<usize> = self
            .head
            .iter()
            .enumerate()
            .map(|(i, (name, _))| {
                self.rows.iter().map(|row| width_of(&row[i])).chain([width_of(name)]).max().unwrap_or(0)
            })
            .collect();
        let gaps = 2 * (widths.len() - 1);
        let total: usize = widths.iter().sum::<usize>() + gaps;
        let excess = total.saturating_sub(screen.width);
        widths[self.flexible] =
            widths[self.flexible].saturating_sub(excess).max(FLEXIBLE_MIN.min(widths[self.flexible]));
        let line = |cells: &[&str]| {
            let cells = cells.iter().enumerate().map(|(i, cell)| {
                let cell = cut(cell, widths[i]);
                let pad = " ".repeat(widths[i] - width_of(&cell));
                match self.head[i].1 {
                    Align::Left => cell + &pad,
                    Align::Right => pad + &cell,
                }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let head: Vec<&str> = self.head.iter().map(|(name, _)| *name).collect();
        let mut lines = vec![screen.faint(&line(&head))];
        lines.extend(self.rows.iter().map(|row| line(&row.iter().map(String::as_str).collect::<Vec<_>>())));
        lines
    }
}

/// A text of at most `width` characters; where it is longer, an ellipsis says so.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Screen = Screen { width: 30, colour: false };

    #[test]
    fn a_table_fits_the_screen() {
        let mut table = Table::new(&[("ID", Align::Left), ("SLOTS", Align::Left), ("KEYS", Align::Right)], 1);
        table.row(vec!["07c37dfe".into(), "0-100,200-300,400-500,600".into(), "1".into()]);
        table.row(vec!["a".into(), "7".into(), "12,345".into()]);
        let lines = table.lines(PLAIN);
        assert_eq!(
            lines,
            [
                "ID        SLOTS           KEYS",
                "07c37dfe  0-100,200-3…       1",
                "a         7             12,345"
            ]
        );
        assert!(table.lines(Screen { width: 5, ..PLAIN }).iter().all(|line| line.chars().count() <= 30));
        let wide = table.lines(Screen { width: 100, ..PLAIN });
        assert!(wide[1].contains("0-100,200-300,400-500,600"), "{}", wide[1]);
    }

    #[test]
    fn long_texts_are_broken_between_words() {
        let text = PLAIN.wrapped("nobody owns slot 5: it was taken for the last time", 4);
        assert_eq!(text, "nobody owns slot 5: it was\n    taken for the last time");
        assert_eq!(PLAIN.good("well"), "well");
        assert_eq!(Screen { colour: true, ..PLAIN }.bad("ill"), "\x1b[31mill\x1b[0m");
    }
}
