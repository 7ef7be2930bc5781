//! File modes: as `ls -l` prints them, and as `chmod` takes them (octal, or symbolic such as `u+rwX,go-w`).
//!
//! Symbolic modes follow POSIX chmod, with the process's mask where no user class is named.

/// Bits of the type of a file.
pub const TYPE_MASK: u32 = 0o170_000;
pub const TYPE_DIRECTORY: u32 = 0o040_000;
pub const TYPE_REGULAR: u32 = 0o100_000;
pub const TYPE_SYMLINK: u32 = 0o120_000;

pub fn is_directory(mode: u32) -> bool {
    mode & TYPE_MASK == TYPE_DIRECTORY
}
pub fn is_regular(mode: u32) -> bool {
    mode & TYPE_MASK == TYPE_REGULAR
}
pub fn is_symlink(mode: u32) -> bool {
    mode & TYPE_MASK == TYPE_SYMLINK
}

/// Letter of the type, as in `ls -l` and `find -type` (there a regular file is `f`).
pub fn type_letter(mode: u32) -> char {
    match mode & TYPE_MASK {
        TYPE_DIRECTORY => 'd',
        TYPE_REGULAR => '-',
        TYPE_SYMLINK => 'l',
        0o010_000 => 'p',
        0o140_000 => 's',
        0o060_000 => 'b',
        0o020_000 => 'c',
        _ => '?',
    }
}

/// Word for the type, in JSON and in sentences.
pub fn type_name(mode: u32) -> &'static str {
    match type_letter(mode) {
        'd' => "directory",
        '-' => "file",
        'l' => "symlink",
        'p' => "fifo",
        's' => "socket",
        'b' => "block device",
        'c' => "character device",
        _ => "unknown",
    }
}

/// `drwxr-xr-x`.
pub fn mode_text(mode: u32) -> String {
    let mut text = String::from(type_letter(mode));
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

/// A change of permission bits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModeChange {
    Exactly(u32),
    Clauses(Vec<Clause>),
}

/// One `who op perms` of a symbolic mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clause {
    /// Bits of the classes named: 0o700, 0o070, 0o007 together; 0: none was named.
    who: u32,
    op: char,
    /// Of rwx, in the lowest digit.
    perms: u32,
    /// `X`: x for directories and for what has an x already.
    conditional_x: bool,
    /// `s` and `t`.
    set_id: bool,
    sticky: bool,
    /// `u`, `g` or `o` on the right side: their present bits.
    copy_from: Option<u32>,
}

impl ModeChange {
    /// Parses octal digits or a symbolic mode; the error says what is right.
    pub fn parse(text: &str) -> Result<ModeChange, String> {
        let bad =
            || format!("{text:?} is no mode: write octal digits such as 644, or a symbolic mode such as u+rwX,go-w");
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            let mode = u32::from_str_radix(text, 8).ok().filter(|m| *m <= 0o7777);
            return mode.map(ModeChange::Exactly).ok_or_else(bad);
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            parse_part(part, &mut clauses).ok_or_else(bad)?;
        }
        Ok(ModeChange::Clauses(clauses))
    }

    /// Permission bits after the change of a file with `mode` (type and bits); `umask` where no class is named.
    pub fn apply(&self, mode: u32, umask: u32) -> u32 {
        let bits = mode & 0o7777;
        match self {
            ModeChange::Exactly(exactly) => *exactly,
            ModeChange::Clauses(clauses) => {
                clauses.iter().fold(bits, |bits, clause| clause.apply(mode & TYPE_MASK | bits, umask))
            }
        }
    }
}

fn parse_part(part: &str, clauses: &mut Vec<Clause>) -> Option<()> {
    let ops = part.find(['+', '-', '='])?;
    let mut who = 0;
    for letter in part[..ops].chars() {
        who |= class_bits(letter)?;
    }
    let mut rest = &part[ops..];
    while let Some(op) = rest.chars().next() {
        rest = &rest[1..];
        let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
        let mut clause =
            Clause { who, op, perms: 0, conditional_x: false, set_id: false, sticky: false, copy_from: None };
        for letter in rest[..end].chars() {
            match letter {
                'r' => clause.perms |= 4,
                'w' => clause.perms |= 2,
                'x' => clause.perms |= 1,
                'X' => clause.conditional_x = true,
                's' => clause.set_id = true,
                't' => clause.sticky = true,
                'u' | 'g' | 'o' if end == 1 => clause.copy_from = class_bits(letter),
                _ => return None,
            }
        }
        clauses.push(clause);
        rest = &rest[end..];
    }
    Some(())
}

fn class_bits(letter: char) -> Option<u32> {
    Some(match letter {
        'u' => 0o700,
        'g' => 0o070,
        'o' => 0o007,
        'a' => 0o777,
        _ => return None,
    })
}

impl Clause {
    fn apply(&self, mode: u32, umask: u32) -> u32 {
        let bits = mode & 0o7777;
        let classes = if self.who == 0 { 0o777 } else { self.who };
        let mut perms = self.perms;
        if self.conditional_x && (is_directory(mode) || bits & 0o111 != 0) {
            perms |= 1;
        }
        if let Some(from) = self.copy_from {
            perms = (bits & from) >> from.trailing_zeros();
        }
        let mut change = (perms * 0o111) & classes;
        if self.who == 0 {
            change &= !umask;
        }
        if self.set_id {
            change |= set_id_of(classes);
        }
        if self.sticky {
            change |= 0o1000;
        }
        match self.op {
            '+' => bits | change,
            '-' => bits & !change,
            // The special bits of directories stay unless they are named.
            _ => {
                let special = if is_directory(mode) { 0 } else { set_id_of(classes) };
                bits & !(classes | special) | change
            }
        }
    }
}

fn set_id_of(classes: u32) -> u32 {
    let bit = |class: u32, bit: u32| if classes & class != 0 { bit } else { 0 };
    bit(0o700, 0o4000) | bit(0o070, 0o2000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody would get access that was not meant.
    #[test]
    fn symbolic_modes_change_what_chmod_changes() {
        for (text, before, after) in [
            ("644", 0o100_777, 0o644),
            ("4755", 0o100_000, 0o4755),
            ("u+x", 0o100_644, 0o744),
            ("go-rwx", 0o100_777, 0o700),
            ("a=r", 0o100_777, 0o444),
            ("+w", 0o100_444, 0o644),
            ("+x", 0o100_644, 0o755),
            ("u+rwX,go+rX", 0o100_600, 0o644),
            ("u+rwX,go+rX", 0o040_700, 0o755),
            ("a+X", 0o100_654, 0o755),
            ("g=u", 0o100_740, 0o770),
            ("u+s,g+s,+t", 0o100_755, 0o7755),
            ("u-s", 0o104_755, 0o755),
            ("u=rwx,g=rx,o=", 0o100_666, 0o750),
            ("g+w-x", 0o100_755, 0o765),
            ("a=rx", 0o042_755, 0o2555),
        ] {
            let change = ModeChange::parse(text).expect(text);
            assert_eq!(change.apply(before, 0o022), after, "{text} on {before:o}");
        }
        for text in ["", "8", "77777", "u", "+q", "z+r", "u+gr", "rwx"] {
            assert!(ModeChange::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn modes_print_as_in_ls() {
        assert_eq!(mode_text(0o040_755), "drwxr-xr-x");
        assert_eq!(mode_text(0o107_644), "-rwSr-Sr-T");
        assert_eq!(mode_text(0o041_777), "drwxrwxrwt");
        assert_eq!(mode_text(0o120_777), "lrwxrwxrwx");
    }
}
