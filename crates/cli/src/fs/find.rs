//! `cairn fs find`: walks trees and prints what passes all tests.
use crate::context::Context;
use crate::entry::entry_json;
use crate::error::{CliError, Result};
use crate::fs::read_flags::StaleFlags;
use crate::glob;
use crate::human::parse_size;
use crate::mode::type_letter;
use crate::remote::{expand_all, find};
use crate::report::{Done, Report};
use crate::walk::{Node, Step, Walk};
use clap::Args;
use std::cmp::Ordering;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Args, Debug)]
#[command(after_help = "All tests have to hold. The classic spelling with one dash (-name, -type …) works too.")]
pub struct FindArgs {
    /// Where to begin; without any, the root of the volume "default"
    paths: Vec<OsString>,
    /// The name matches this pattern
    #[arg(long, value_name = "PATTERN")]
    name: Option<OsString>,
    /// The name matches this pattern, upper and lower case (ASCII) alike
    #[arg(long, value_name = "PATTERN")]
    iname: Option<OsString>,
    /// The whole path matches this pattern (* also matches /)
    #[arg(long, value_name = "PATTERN")]
    path: Option<OsString>,
    /// f file, d directory, l symbolic link, p fifo, s socket, b or c device; several with commas
    #[arg(long = "type", value_name = "TYPES")]
    types: Option<String>,
    /// Larger (+N), smaller (-N) or as large as (N) so many bytes; k, m, g are understood
    #[arg(long, value_name = "[+-]SIZE", allow_hyphen_values = true)]
    size: Option<String>,
    /// Changed later than this remote file
    #[arg(long, value_name = "PATH")]
    newer: Option<OsString>,
    /// Changed more (+N), less (-N) or as many (N) whole days ago
    #[arg(long, value_name = "[+-]DAYS", allow_hyphen_values = true)]
    mtime: Option<String>,
    /// The same in minutes
    #[arg(long, value_name = "[+-]MINUTES", allow_hyphen_values = true)]
    mmin: Option<String>,
    /// Files and directories without contents
    #[arg(long)]
    empty: bool,
    /// Owner, by name or number
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Group, by name or number
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Go down at most so many levels below the start
    #[arg(long, value_name = "N")]
    maxdepth: Option<usize>,
    /// Print nothing above so many levels below the start
    #[arg(long, value_name = "N", default_value_t = 0)]
    mindepth: usize,
    /// End each path with a NUL byte instead of a line end
    #[arg(long)]
    print0: bool,
    /// Print the path (what happens anyway)
    #[arg(long, hide = true)]
    print: bool,
    #[command(flatten)]
    stale: StaleFlags,
}

struct Tests {
    name: Option<Vec<u8>>,
    iname: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
    types: Option<String>,
    size: Option<(Ordering, u64)>,
    newer_ns: Option<i64>,
    ages: [Option<Age>; 2],
    uid: Option<u32>,
    gid: Option<u32>,
}

/// Whole units of time since the last change.
#[derive(Clone, Copy)]
struct Age {
    order: Ordering,
    count: u64,
    unit_s: u64,
    now_ns: i64,
}

impl Age {
    /// `+7`, `-1`, `0`.
    fn parse(text: &str, unit_s: u64, now_ns: i64) -> std::result::Result<Age, String> {
        let (order, count) = order_of(text);
        let count = count.parse().map_err(|_| format!("{text:?} is no age: write +N, -N or N, a whole number"))?;
        Ok(Age { order, count, unit_s, now_ns })
    }
    fn holds(self, mtime_ns: i64) -> bool {
        let age = self.now_ns.saturating_sub(mtime_ns).max(0) as u64 / 1_000_000_000 / self.unit_s;
        age.cmp(&self.count) == self.order
    }
}

impl FindArgs {
    pub async fn run(mut self, context: &Context) -> Result<()> {
        self.stale.apply(context);
        if self.paths.is_empty() {
            self.paths.push("/".into());
        }
        let tests = self.tests(context).await?;
        let report = context.walk_report();
        for found in expand_all(context, &self.paths, false, &report).await {
            let mut walk = Walk::new(&found.volume, found.at.clone(), found.attributes);
            if let Some(depth) = self.maxdepth {
                walk = walk.depth_max(depth);
            }
            self.walk(context, &mut walk, &tests, &report).await?;
        }
        report.finish()
    }

    async fn walk(&self, context: &Context, walk: &mut Walk, tests: &Tests, report: &Report) -> Result<()> {
        // For --empty: directories whose entries are still to come; false once one came.
        let mut untouched: Vec<(Node, bool)> = Vec::new();
        while let Some(step) = walk.next().await {
            let node = match step {
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => {
                    report.fail(&error);
                    continue;
                }
                Ok(Step::Leave(_)) => {
                    if let Some((directory, true)) = untouched.pop() {
                        report.progress().aside(|| self.print(context, &directory))?;
                    }
                    continue;
                }
                Ok(Step::Enter(node)) => node,
            };
            report.done(Done::File(0));
            report.progress().looked();
            if let Some(above) = untouched.last_mut() {
                above.1 = false;
            }
            let passes = node.depth >= self.mindepth && tests.hold(&node);
            if self.empty && node.is_directory() {
                let entered = self.maxdepth.is_none_or(|depth| node.depth < depth);
                if entered {
                    untouched.push((node, passes));
                }
                continue;
            }
            if passes && !(self.empty && (node.attributes.size > 0 || type_letter(node.attributes.mode) != '-')) {
                report.progress().aside(|| self.print(context, &node))?;
            }
        }
        Ok(())
    }

    fn print(&self, context: &Context, node: &Node) -> Result<()> {
        if context.out.is_json() {
            return context.out.json(&entry_json(&node.at, &node.attributes, None));
        }
        let path = node.at.to_string();
        let path = if node.at.cluster.is_none() { exact(node) } else { path.into_bytes() };
        match self.print0 {
            true => context.out.bytes(&[&path, b"\0".as_slice()].concat()),
            false => context.out.line(context.out.name(&path)),
        }
    }

    async fn tests(&self, context: &Context) -> Result<Tests> {
        let newer_ns = match &self.newer {
            Some(text) => Some(find(context, context.remote(text)?, true).await?.attributes.mtime_ns),
            None => None,
        };
        if let Some(bad) = self.types.as_deref().and_then(|types| types.chars().find(|c| !"fdlpsbc,".contains(*c))) {
            return Err(CliError::usage(format!("{bad:?} is no type: write f, d, l, p, s, b or c")));
        }
        let owner = |text: &Option<String>, prefix: &str| match text {
            Some(text) => crate::owner::NewOwner::parse(&format!("{prefix}{text}")).map(Some),
            None => Ok(None),
        };
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
        let age =
            |text: &Option<String>, unit_s| text.as_deref().map(|text| Age::parse(text, unit_s, now_ns)).transpose();
        Ok(Tests {
            name: self.name.as_ref().map(|name| name.as_bytes().to_vec()),
            iname: self.iname.as_ref().map(|name| name.as_bytes().to_ascii_lowercase()),
            path: self.path.as_ref().map(|path| path.as_bytes().to_vec()),
            types: self.types.clone(),
            size: self.size.as_deref().map(parse_size_test).transpose().map_err(CliError::usage)?,
            newer_ns,
            ages: [age(&self.mtime, 86_400).map_err(CliError::usage)?, age(&self.mmin, 60).map_err(CliError::usage)?],
            uid: owner(&self.user, "").map_err(CliError::usage)?.and_then(|owner| owner.uid),
            gid: owner(&self.group, ":").map_err(CliError::usage)?.and_then(|owner| owner.gid),
        })
    }
}

/// The path with its bytes as they are.
fn exact(node: &Node) -> Vec<u8> {
    let shown = node.at.to_string();
    match shown.as_bytes().first() {
        Some(b'/') | None => node.at.path.clone(),
        _ => [node.at.volume.as_bytes(), b":", &node.at.path].concat(),
    }
}

/// More (`+N`), less (`-N`) or exactly that much.
fn order_of(text: &str) -> (Ordering, &str) {
    match text.as_bytes().first() {
        Some(b'+') => (Ordering::Greater, &text[1..]),
        Some(b'-') => (Ordering::Less, &text[1..]),
        _ => (Ordering::Equal, text),
    }
}

/// `+1k`, `-5`, `0`.
fn parse_size_test(text: &str) -> std::result::Result<(Ordering, u64), String> {
    let (order, size) = order_of(text);
    // `c` for bytes, as the classic find writes it.
    parse_size(size.strip_suffix('c').unwrap_or(size)).map(|size| (order, size))
}

impl Tests {
    fn hold(&self, node: &Node) -> bool {
        let a = &node.attributes;
        let name = match node.at.name() {
            b"" => b"/",
            name => name,
        };
        let letter = if type_letter(a.mode) == '-' { 'f' } else { type_letter(a.mode) };
        self.name.as_ref().is_none_or(|pattern| glob::matches_any(pattern, name))
            && self.iname.as_ref().is_none_or(|pattern| glob::matches_any(pattern, &name.to_ascii_lowercase()))
            && self.path.as_ref().is_none_or(|pattern| glob::matches_any(pattern, &node.at.path))
            && self.types.as_ref().is_none_or(|types| types.contains(letter))
            && self.size.is_none_or(|(order, size)| a.size.cmp(&size) == order)
            && self.newer_ns.is_none_or(|time| a.mtime_ns > time)
            && self.ages.iter().flatten().all(|age| age.holds(a.mtime_ns))
            && self.uid.is_none_or(|uid| a.uid == uid)
            && self.gid.is_none_or(|gid| a.gid == gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::RemotePath;
    use cairn_client::attributes::Attributes;

    fn node(path: &str, size: u64) -> Node {
        let attributes = Attributes { mode: 0o100_644, size, mtime_ns: 50, ..Attributes::default() };
        Node { at: RemotePath::parse(path.as_bytes()).expect("path"), depth: 1, parent: 1, attributes }
    }

    const ANY: Tests = Tests {
        name: None,
        iname: None,
        path: None,
        types: None,
        size: None,
        newer_ns: None,
        ages: [None; 2],
        uid: None,
        gid: None,
    };

    /// A cleaning of old files would take those of today.
    #[test]
    fn ages_are_whole_days_as_find_counts_them() {
        const DAY: i64 = 86_400_000_000_000;
        let holds = |text: &str, ago: i64| Age::parse(text, 86_400, 100 * DAY).expect(text).holds(100 * DAY - ago);
        assert!(holds("+7", 8 * DAY) && !holds("+7", 8 * DAY - 1), "seven days and a half are seven");
        assert!(holds("-1", DAY - 1) && !holds("-1", DAY));
        assert!(holds("0", 5) && holds("1", DAY) && !holds("1", 2 * DAY));
        assert!(Age::parse("0", 60, 5).expect("an age").holds(10), "made by a clock that is ahead");
        assert!(Age::parse("+a", 60, 5).is_err() && Age::parse("", 60, 5).is_err());
    }

    /// `find … | xargs rm` would remove what does not pass the tests.
    #[test]
    fn all_tests_have_to_hold() {
        let file = node("/a/B.Txt", 1024);
        assert!(ANY.hold(&file));
        assert!(Tests { name: Some(b"*.Txt".into()), types: Some("f,d".into()), ..ANY }.hold(&file));
        assert!(!Tests { name: Some(b"*.txt".into()), ..ANY }.hold(&file));
        assert!(Tests { iname: Some(b"*.txt".into()), path: Some(b"/a/*".into()), ..ANY }.hold(&file));
        assert!(!Tests { types: Some("d".into()), ..ANY }.hold(&file));
        assert!(Tests { newer_ns: Some(49), uid: Some(0), ..ANY }.hold(&file));
        assert!(!Tests { newer_ns: Some(50), ..ANY }.hold(&file));
        for (text, holds) in [("+1k", false), ("1k", true), ("-2k", true), ("+1023c", true), ("0", false)] {
            let size = Some(parse_size_test(text).expect(text));
            assert_eq!(Tests { size, ..ANY }.hold(&file), holds, "{text}");
        }
    }
}
