//! Classic bugs, put back on purpose: each file in `mutants/` is one small change of the product and names the tests
//! that must fail with it. What survives is a hole in the tests.
//!
//! Invariants: the project's own files are not touched (changes are made in a copy below the target directory); a
//! mutant counts as caught only if it compiles, and one of the tests that it names ran and failed, or one that was
//! expected to hang did. `cargo xtask check mutants` proves that every change still fits the source.
mod copy;
mod seeds;

use crate::cargo::{Workspace, cargo};
use crate::findings::Findings;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FOLDER: &str = "mutants";
/// A test run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(900);
const POLL: Duration = Duration::from_millis(100);
/// Seeds that are tried for a mutant that says nothing of them.
const SEEDS: u64 = 32;
/// Of a test's output, when it did not do what was expected.
const LINES_SHOWN: usize = 30;

/// One of them, as its file says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mutant {
    name: String,
    /// What is wrong then, in a sentence.
    what: String,
    file: PathBuf,
    /// Occurs once in the file, and is replaced.
    find: String,
    replace: String,
    /// Arguments of `cargo test`.
    test: Vec<String>,
    env: BTreeMap<String, String>,
    /// Parts of names of tests, of which one has to fail.
    caught_by: Vec<String>,
    /// Within how many seeds, or what else is known.
    within: String,
    /// One of so many seeds of the whole cluster has to fail; `None`: nothing is known of them.
    seeds: Option<u64>,
}

/// How it went.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// By these tests.
    Caught(Vec<String>),
    /// Why that is not so.
    Survived(String),
}

impl Mutant {
    fn parse(name: &str, text: &str) -> Result<Mutant> {
        let table: toml::Table = text.parse().context("it is no TOML")?;
        let known = ["what", "file", "find", "replace", "test", "env", "caught_by", "within", "seeds"];
        if let Some(other) = table.keys().find(|key| !known.contains(&key.as_str())) {
            bail!("unknown key {other}; the keys are {}", known.join(", "));
        }
        let string = |key: &str| {
            table.get(key).and_then(toml::Value::as_str).map(str::to_owned).with_context(|| format!("{key} is missing"))
        };
        let list = |key: &str| {
            let values = table.get(key).and_then(toml::Value::as_array).with_context(|| format!("{key} is missing"))?;
            let text =
                |value: &toml::Value| value.as_str().map(str::to_owned).context("a list has something else than texts");
            values.iter().map(text).collect::<Result<Vec<_>>>()
        };
        let env = match table.get("env").and_then(toml::Value::as_table) {
            None => BTreeMap::new(),
            Some(env) => env
                .iter()
                .map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect::<Option<_>>()
                .context("env has something else than texts")?,
        };
        let mutant = Mutant {
            name: name.to_owned(),
            what: string("what")?,
            file: string("file")?.into(),
            find: string("find")?,
            replace: string("replace")?,
            test: list("test")?,
            env,
            caught_by: list("caught_by")?,
            within: string("within")?,
            seeds: match table.get("seeds") {
                None => None,
                Some(value) => {
                    let count =
                        value.as_integer().and_then(|count| u64::try_from(count).ok()).filter(|count| *count > 0);
                    Some(count.context("seeds is no number of seeds")?)
                }
            },
        };
        ensure!(mutant.find != mutant.replace, "find and replace are the same");
        ensure!(!mutant.caught_by.is_empty(), "caught_by names no test");
        Ok(mutant)
    }

    /// The file with the bug.
    fn apply(&self, source: &str) -> Result<String> {
        match source.matches(self.find.as_str()).count() {
            1 => Ok(source.replacen(self.find.as_str(), &self.replace, 1)),
            found => bail!("{} has the text of `find` {found} times, not once", self.file.display()),
        }
    }
}

fn load(root: &Path) -> Result<Vec<Mutant>> {
    let folder = root.join(FOLDER);
    let mut mutants = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry.with_context(|| format!("listing {}", folder.display()))?.path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        mutants.push(Mutant::parse(&name, &text).with_context(|| format!("{FOLDER}/{name}.toml"))?);
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

/// Whether all of them can still be made.
pub fn check(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    let mutants = load(&workspace.root)?;
    for mutant in &mutants {
        let source = fs::read_to_string(workspace.root.join(&mutant.file));
        let fits = source.context("reading it").and_then(|source| mutant.apply(&source));
        if let Err(error) = fits {
            findings.fail(format!("{FOLDER}/{}.toml: {}: {error:#}", mutant.name, mutant.file.display()));
        }
    }
    if mutants.is_empty() {
        findings.fail(format!("there is nothing in {FOLDER}/"));
    }
    Ok(())
}

/// Makes those that are named, or all, and runs their tests, or with `--seeds` seeds of the whole cluster. `Ok(false)`:
/// one survived.
pub fn run(args: &[&str]) -> Result<bool> {
    let by_seeds = args.contains(&"--seeds");
    let names: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--seeds").collect();
    let workspace = Workspace::load()?;
    let all = load(&workspace.root)?;
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|mutant| mutant.name == **name)) {
        let known: Vec<&str> = all.iter().map(|mutant| mutant.name.as_str()).collect();
        bail!("there is no mutant {unknown}; they are: {}", known.join(", "));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.root.join("target"), PathBuf::from);
    let tree = target.join("mutants").join("tree");
    copy::renew(&workspace.root, &tree)?;
    let (mut survivors, mut lines) = (0, Vec::new());
    let build = target.join("mutants").join("build");
    let wanted = |mutant: &&Mutant| match names.as_slice() {
        [] => !by_seeds || mutant.seeds.is_some(),
        names => names.contains(&mutant.name.as_str()),
    };
    for mutant in all.iter().filter(wanted) {
        println!("== {}: {}", mutant.name, mutant.what);
        let begun = Instant::now();
        let path = tree.join(&mutant.file);
        let source = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        fs::write(&path, mutant.apply(&source)?).with_context(|| format!("writing {}", path.display()))?;
        let (outcome, expected) = match by_seeds {
            false => (try_to_catch(mutant, &tree, &build), mutant.within.clone()),
            true => {
                let count = mutant.seeds.unwrap_or(SEEDS);
                (seeds::try_to_catch(mutant, count, &tree, &build), format!("one of {count} seeds"))
            }
        };
        fs::write(&path, source).with_context(|| format!("writing {}", path.display()))?;
        let said = match outcome? {
            Outcome::Caught(tests) => format!("caught by {}", tests.join(", ")),
            Outcome::Survived(why) => {
                survivors += 1;
                format!("SURVIVED: {why}")
            }
        };
        println!("   {said} ({} s; expected: {})", begun.elapsed().as_secs(), expected);
        lines.push(format!("{:<28} {said}", mutant.name));
    }
    println!("\n== summary");
    lines.iter().for_each(|line| println!("  {line}"));
    println!("{} caught, {survivors} survived", lines.len() - survivors);
    Ok(survivors == 0 && !lines.is_empty())
}

fn try_to_catch(mutant: &Mutant, tree: &Path, build: &Path) -> Result<Outcome> {
    let command = || {
        let mut command = cargo();
        command.args(["test", "--locked", "--no-fail-fast"]).current_dir(tree).env("CARGO_TARGET_DIR", build);
        command
    };
    // Arguments behind `--` are of the tests.
    let of_cargo = mutant.test.iter().take_while(|argument| *argument != "--");
    let built = command().args(of_cargo).arg("--no-run").stdin(Stdio::null()).output().context("starting cargo")?;
    if !built.status.success() {
        let said = last_lines(&String::from_utf8_lossy(&built.stderr));
        return Ok(Outcome::Survived(format!("it does not compile:\n{said}")));
    }
    let mut command = command();
    command.args(&mutant.test).envs(&mutant.env);
    let (ended, output) = run_for(command, PATIENCE)?;
    Ok(judge(mutant, ended, &output))
}

/// Runs it and kills it, cargo's children included, when it takes too long. Whether it ended by itself, and what it
/// said.
fn run_for(mut command: Command, patience: Duration) -> Result<(bool, String)> {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    let (mut reader, writer) = std::io::pipe().context("making a pipe")?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("sharing the pipe")?)
        .stderr(writer)
        .process_group(0);
    let mut child = command.spawn().context("starting cargo test")?;
    drop(command);
    let reading = std::thread::spawn(move || {
        let mut output = Vec::new();
        reader.read_to_end(&mut output).map(|_| String::from_utf8_lossy(&output).into_owned())
    });
    let begun = Instant::now();
    let mut ended = true;
    while child.try_wait().context("waiting for cargo test")?.is_none() {
        if ended && begun.elapsed() > patience {
            ended = false;
            let group = format!("-{}", child.id());
            let status = Command::new("kill").args(["-KILL", "--", &group]).status().context("starting kill")?;
            ensure!(status.success(), "kill of process group {group} failed");
        }
        std::thread::sleep(POLL);
    }
    let output = reading.join().map_err(|_| anyhow::anyhow!("the thread that reads the output ended"))?;
    Ok((ended, output.context("reading the tests' output")?))
}

fn judge(mutant: &Mutant, ended: bool, output: &str) -> Outcome {
    let name = |line: &str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned);
    let failed: Vec<String> = output.lines().filter_map(|line| name(line.trim())).collect();
    let expected = |test: &&String| mutant.caught_by.iter().any(|part| test.contains(part.as_str()));
    let by: Vec<String> = failed.iter().filter(expected).cloned().collect();
    if !by.is_empty() {
        return Outcome::Caught(by);
    }
    let last = last_lines(output);
    Outcome::Survived(match (ended, failed.is_empty()) {
        (false, _) => format!("the tests hung for {} s; the end of what they said:\n{last}", PATIENCE.as_secs()),
        (true, false) => format!("only others failed: {}", failed.join(", ")),
        (true, true) => format!("no test failed:\n{last}"),
    })
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
what = "epochs are not compared"
file = "crates/x/src/y.rs"
find = "a == b"
replace = "true"
test = ["-p", "x", "--lib", "epochs"]
env = { SEEDS = "32" }
caught_by = ["epochs_and_states"]
within = "1 test"
"#;

    /// A mutant that cannot be made, or is made at the wrong place, would prove nothing.
    #[test]
    fn a_change_has_one_place() {
        let mutant = Mutant::parse("epochs", TEXT).expect("parsed");
        assert_eq!(mutant.apply("if a == b {}").expect("once"), "if true {}");
        for source in ["if a != b {}", "a == b || a == b"] {
            assert!(mutant.apply(source).is_err(), "{source}");
        }
        assert!(Mutant::parse("x", &TEXT.replace("caught_by = [\"epochs_and_states\"]", "caught_by = []")).is_err());
        assert!(Mutant::parse("x", &TEXT.replace("\"true\"", "\"a == b\"")).is_err());
        assert!(Mutant::parse("x", &format!("{TEXT}more = 1")).is_err());
    }

    /// A test that fails for another reason, or does not run at all, would count as one that catches.
    #[test]
    fn only_a_test_that_is_named_catches() {
        let mutant = Mutant::parse("epochs", TEXT).expect("parsed");
        let caught = judge(
            &mutant,
            true,
            "test fence::tests::epochs_and_states ... FAILED\ntest result: FAILED. 0 passed; 1 failed",
        );
        assert_eq!(caught, Outcome::Caught(vec!["fence::tests::epochs_and_states".into()]));
        for (ended, output) in [
            (true, "test other ... FAILED\ntest result: FAILED"),
            (true, "test fence::tests::epochs_and_states ... ok\ntest result: ok"),
            (true, ""),
            (false, "test fence::tests::epochs_and_states has been running for over 60 seconds"),
        ] {
            assert!(matches!(judge(&mutant, ended, output), Outcome::Survived(_)), "{output}");
        }
    }

    /// What hangs would hold everything up, and its children go on for ever.
    #[test]
    fn what_takes_too_long_is_ended() {
        let mut hangs = Command::new("sh");
        hangs.args(["-c", "echo begun; sleep 600 & wait"]);
        let begun = Instant::now();
        let (ended, output) = run_for(hangs, Duration::from_millis(300)).expect("run");
        assert_eq!((ended, output.as_str()), (false, "begun\n"));
        assert!(begun.elapsed() < Duration::from_secs(300), "its child holds the pipe");
        let mut quick = Command::new("sh");
        quick.args(["-c", "echo said"]);
        assert_eq!(run_for(quick, Duration::from_secs(300)).expect("run"), (true, "said\n".into()));
    }
}
