//! One thing that is wrong: how bad it is, and the words for it.
//!
//! Invariant: the numbers of severities are on the wire: never reused.

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Something changes as somebody wished, or is as it was announced: known, and over by itself.
    Notice = 1,
    /// Everything can be read and written, but a loss more would be worse than it should be: a person looks at it
    /// today.
    Warning = 2,
    /// Something cannot be read or written, or is lost: a person looks at it now.
    Critical = 3,
}

impl Severity {
    /// The worst last.
    pub const ALL: [Self; 3] = [Self::Notice, Self::Warning, Self::Critical];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
    /// Its number on the wire.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub severity: Severity,
    pub text: String,
}

/// What was found so far.
#[derive(Default, Debug)]
pub struct Problems(Vec<Problem>);

impl Problems {
    pub fn push(&mut self, severity: Severity, text: String) {
        self.0.push(Problem { severity, text });
    }
    pub(crate) fn critical(&mut self, text: String) {
        self.push(Severity::Critical, text);
    }
    pub(crate) fn warning(&mut self, text: String) {
        self.push(Severity::Warning, text);
    }
    pub(crate) fn notice(&mut self, text: String) {
        self.push(Severity::Notice, text);
    }
    /// All of them, the worst first; of the same severity as they were found.
    pub fn in_order(mut self) -> Vec<Problem> {
        self.0.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
        self.0
    }
    #[cfg(test)]
    pub(crate) fn texts(self) -> Vec<String> {
        self.in_order().into_iter().map(|problem| problem.text).collect()
    }
}
