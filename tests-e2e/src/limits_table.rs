//! The table of defaults and limits in SECURITY.md, to be compared with the code.
//!
//! State: none. Thread class: any thread, blocking. A name like `ReactorConfig::linger` is a field of a type whose `Debug`
//! text shows it; one in capitals is a constant in the file that it links to.

use std::fmt;
use std::path::Path;

const PAGE: &str = include_str!("../../SECURITY.md");

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// `Type::field`, or the constant's name.
    pub name: String,
    /// Of a constant: the file, from the repository's root.
    pub file: Option<String>,
    /// What the second column says.
    pub default: Value,
}

/// A number, a time, or a word, however it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A count, or bytes.
    Number(u128),
    /// Nanoseconds.
    Time(u128),
    /// Anything else.
    Word(String),
}

/// All rows that name something in the code.
///
/// # Panics
/// When the page has no such table.
pub fn rows() -> Vec<Row> {
    let rows: Vec<Row> = PAGE.lines().filter_map(row).collect();
    assert!(rows.len() > 50, "SECURITY.md has {} rows of limits: was the table's form changed?", rows.len());
    rows
}

/// `| name | default | ..`, where the name is in backticks and perhaps links to a file.
fn row(line: &str) -> Option<Row> {
    let mut cells = line.strip_prefix("| ")?.split(" | ");
    let (name, default) = (cells.next()?, cells.next()?);
    let (name, file) = match name.strip_prefix("[`") {
        Some(linked) => {
            let (name, file) = linked.split_once("`](")?;
            (name, Some(file.strip_suffix(')')?.to_owned()))
        }
        None => (name.strip_prefix('`')?.strip_suffix('`')?, None),
    };
    (file.is_some() || name.contains("::")).then(|| Row {
        name: name.to_owned(),
        file,
        default: Value::written(default),
    })
}

impl Value {
    /// As people write it: `16 KiB`, `65 536`, `100 ms`, `0 (off)`, `none`.
    fn written(text: &str) -> Self {
        let text = text.split(" (").next().unwrap_or_default().trim().trim_matches('`');
        let digits: String =
            text.chars().take_while(|c| c.is_ascii_digit() || *c == ' ').filter(|c| *c != ' ').collect();
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let Ok(n) = digits.parse::<u128>() else {
            let word = match text {
                "none" => "None",
                "empty" => "b\"\"",
                word => word,
            };
            return Self::Word(word.to_owned());
        };
        match unit {
            "" => Self::Number(n),
            "KiB" => Self::Number(n << 10),
            "MiB" => Self::Number(n << 20),
            "GiB" => Self::Number(n << 30),
            "ns" => Self::Time(n),
            "us" | "µs" => Self::Time(n * 1000),
            "ms" => Self::Time(n * 1_000_000),
            "s" => Self::Time(n * 1_000_000_000),
            "h" => Self::Time(n * 3_600_000_000_000),
            _ => Self::Word(text.to_owned()),
        }
    }

    /// As `Debug` writes it: `16384`, `60s`, `100ms`, `None`.
    fn shown(text: &str) -> Self {
        match text.find(|c: char| !c.is_ascii_digit()) {
            None => text.parse().map_or_else(|_| Self::Word(text.to_owned()), Self::Number),
            Some(at) if at > 0 => Self::written(&format!("{} {}", &text[..at], &text[at..])),
            Some(_) => Self::Word(text.to_owned()),
        }
    }
}

/// Compares the `Debug` text of a default with the rows of its type, and of those inside it: none may be missing, left
/// over, or differ.
///
/// # Panics
/// When one does, with its name.
pub fn check_defaults(default: &dyn fmt::Debug) {
    check_shown(&format!("{default:?}"));
}

/// The same for a text, of a type that is not public.
///
/// # Panics
/// As [`check_defaults`].
pub fn check_shown(shown: &str) {
    let (of, fields) = shown.split_once(" { ").unwrap_or_else(|| panic!("not a struct: {shown}"));
    let rows: Vec<Row> = rows().into_iter().filter(|row| row.name.starts_with(&format!("{of}::"))).collect();
    let mut seen = 0;
    for field in split(fields.strip_suffix(" }").unwrap_or(fields)) {
        let (name, value) = field.split_once(": ").unwrap_or_else(|| panic!("{of}: no field: {field}"));
        if value.contains(" { ") {
            check_shown(value);
            continue;
        }
        let name = format!("{of}::{name}");
        let row = rows.iter().find(|row| row.name == name);
        let row = row.unwrap_or_else(|| panic!("SECURITY.md has no row `{name}`: its default is {value}"));
        assert_eq!(row.default, Value::shown(value), "SECURITY.md, `{name}`; the code has {value}");
        seen += 1;
    }
    assert_eq!(seen, rows.len(), "SECURITY.md has rows of {of} that the code does not have: {rows:?}, {shown}");
}

/// The fields of a `Debug` text, without looking into braces.
fn split(fields: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, c) in fields.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(fields[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(fields[from..].trim());
    parts
}

/// The value of a constant, or of a field of that name in a `fn default` or `fn new`, read from the source at `file`.
///
/// # Panics
/// When it is not there, or is more than products, shifts and durations.
pub fn value_in(file: &str, name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let constant = source.lines().find_map(|line| {
        let (left, right) = line.split_once(" = ")?;
        let named = left.split_once("const ")?.1.split_once(':')?.0 == name;
        named.then(|| right.trim_end_matches(';'))
    });
    let field = || {
        let begin = format!("{name}: ");
        source.lines().find_map(|line| line.trim().strip_prefix(&begin).filter(|rest| rest.ends_with("),")))
    };
    let text = constant.or_else(field).unwrap_or_else(|| panic!("{file} has no {name}"));
    evaluate(text.trim_end_matches(','), name)
}

fn evaluate(text: &str, name: &str) -> Value {
    for (call, unit) in [("Duration::from_secs(", 1_000_000_000), ("Duration::from_millis(", 1_000_000)] {
        if let Some(inner) = text.strip_prefix(call).and_then(|rest| rest.strip_suffix(')')) {
            return Value::Time(number(inner) * unit);
        }
    }
    if name.ends_with("_MS") { Value::Time(number(text) * 1_000_000) } else { Value::Number(number(text)) }
}

fn number(text: &str) -> u128 {
    if let Some((left, right)) = text.split_once(" << ") {
        return number(left) << number(right);
    }
    let factors = text.split(" * ").map(|part| part.replace('_', ""));
    factors.map(|part| part.parse::<u128>().unwrap_or_else(|_| panic!("not a plain number: {text}"))).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_and_what_debug_shows_are_the_same_values() {
        for (written, shown) in [
            ("16 KiB", "16384"),
            ("65 536", "65536"),
            ("0 (off)", "0"),
            ("60 s", "60s"),
            ("100 ms", "100ms"),
            ("12 h", "43200s"),
            ("none", "None"),
            ("empty", "b\"\""),
            ("`DropNewest`", "DropNewest"),
        ] {
            assert_eq!(Value::written(written), Value::shown(shown), "{written}");
        }
        assert_ne!(Value::written("60 s"), Value::shown("60ms"));
        assert_ne!(Value::written("16"), Value::shown("16384"));
        assert_eq!(evaluate("12 * 3600", "X"), Value::Number(43_200));
        assert_eq!(evaluate("8 << 20", "X"), Value::written("8 MiB"));
        assert_eq!(evaluate("Duration::from_secs(12 * 3600)", "X"), Value::written("12 h"));
        assert_eq!(evaluate("250", "TICK_MS"), Value::written("250 ms"));
    }

    #[test]
    #[should_panic(expected = "`ListenOptions::backlog`")]
    fn a_default_that_differs_is_named() {
        check_shown("ListenOptions { backlog: 1, max_connections: None }");
    }

    #[test]
    #[should_panic(expected = "no row `ListenOptions::invented`")]
    fn an_option_that_the_table_lacks_is_named() {
        check_shown("ListenOptions { invented: 1 }");
    }

    #[test]
    #[should_panic(expected = "rows of ListenOptions")]
    fn a_row_that_the_code_lacks_is_named() {
        check_shown("ListenOptions { backlog: 1024 }");
    }
}
