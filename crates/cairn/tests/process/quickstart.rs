//! The quickstart: a reader who copies its commands gets what the page says.
use crate::docs::{page, path_with_binary, replaced, shell_blocks};
use crate::support::{free_base, text};
use std::path::Path;
use std::process::{Command, Stdio};

const PAGE: &str = "docs/guides/quickstart.md";

/// The text below a heading, up to the next one of the same level or above.
fn section(page: &str, heading: &str) -> String {
    let level = heading.split(' ').next().unwrap_or_default().len();
    let mut lines = page.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "{heading:?} is no longer on the page");
    let ends = |line: &&str| {
        let marks = line.split(' ').next().unwrap_or_default();
        !(marks.len() <= level && !marks.is_empty() && marks.chars().all(|c| c == '#'))
    };
    // A comment in a block of commands is no heading.
    let mut fenced = false;
    let taken = lines.take_while(|line| {
        fenced ^= line.starts_with("```");
        fenced || ends(line)
    });
    taken.map(|line| format!("{line}\n")).collect()
}

fn run(dir: &Path, script: &str, cluster: Option<&str>) -> String {
    std::fs::write(dir.join("guide.sh"), script).expect("script");
    let mut bash = Command::new("bash");
    bash.arg("guide.sh").current_dir(dir).env("PATH", path_with_binary(dir)).stdin(Stdio::null());
    // Where the key of a cluster goes.
    bash.env("HOME", dir).env_remove("XDG_CONFIG_HOME").env_remove("CAIRN_KEY");
    if let Some(cluster) = cluster {
        bash.env("CAIRN_CLUSTER", cluster);
    }
    let output = bash.output().expect("bash");
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("every command was run"), "{out}\n{error}");
    out
}

/// The first commands of a new user would end in an error, or what was stored would be gone after a kill.
#[test]
fn one_process_works_as_it_is_written() {
    let dir = tempfile::Builder::new().prefix("cairn-quickstart-").tempdir().expect("dir");
    let address = format!("127.0.0.1:{}", free_base(1));
    let start = format!(
        "rm -f dev.out\ncairn dev --listen {address} --http 127.0.0.1:0 --data-dir ./try-cairn >dev.out 2>dev.log &\n\
         for _ in $(seq 3000); do grep -qs ^ready dev.out && break; kill -0 $!; sleep 0.1; done\n\
         grep ^ready dev.out || cat dev.log >&2"
    );
    let blocks = shell_blocks(&section(&page(PAGE), "## One process"));
    assert_eq!(blocks.matches("cairn dev --data-dir ./try-cairn &").count(), 2, "{blocks}");
    // A person is slower than a process that dies.
    let blocks = replaced(
        &blocks,
        &[("cairn dev --data-dir ./try-cairn &", &start), ("kill -9 $!\n", "kill -9 $!\nwait $! || true\n")],
    );
    let script = format!(
        "set -euo pipefail\ntrap 'kill -9 $! 2>/dev/null || true' EXIT\n{blocks}\necho every command was run\n"
    );
    let out = run(dir.path(), &script, Some(&address));
    assert!(out.contains("hello, cairn") && out.contains("3 more losses"), "{out}");
}

/// An operator who follows the page on three machines would get no cluster, or one that does not survive the loss of
/// one.
#[test]
fn three_machines_work_as_they_are_written() {
    let dir = tempfile::Builder::new().prefix("cairn-quickstart-").tempdir().expect("dir");
    let base = free_base(3);
    let page = page(PAGE);
    let part = |heading: &str| shell_blocks(&section(&page, heading));
    let here = |script: &str| {
        let ports = script.replace(":7400", &format!(":{base}")).replace(":7480", &format!(":{}", base + 1));
        let ports = ports.replace(":7390", &format!(":{}", base + 2));
        ports.replace("10.0.0.", "127.0.0.")
    };
    let serve = "cairn key serve --ca authority --listen $AUTHORITY";
    let served = format!(
        "{serve} > authority.out 2> authority.log & echo $! > node-authority.pid
        for _ in $(seq 3000); do grep -q ^ready authority.out && break; sleep 0.1; done"
    );
    let keys = replaced(&part("### Make the keys"), &[(&format!("{serve} &"), &served)]);
    let write = replaced(
        &part("### Write the configuration"),
        &[
            ("NUMBER=1 ", "NUMBER=$1 "),
            ("/etc/cairn/node.toml", "node$NUMBER.toml"),
            ("/var/lib/cairn/node", "$PWD/node$NUMBER"),
            ("sudo -u cairn cairn", "cairn"),
            ("/etc/cairn/revoked", "$PWD/revoked"),
            ("/mnt/disk1/cairn", "$PWD/disk$NUMBER"),
        ],
    );
    let server = "cairn server --config node$1.toml > node$1.out 2> node$1.log & echo $! > node$1.pid";
    let start = replaced(&part("### Start it"), &[("systemctl enable --now --no-block cairn@node", server)]);
    let stop = "kill $(cat node3.pid) && while kill -0 $(cat node3.pid) 2>/dev/null; do sleep 0.1; done";
    let lose = replaced(&part("### Lose a machine"), &[("systemctl stop cairn@node", stop)]);
    let script = here(&format!(
        "set -euo pipefail
        trap 'for p in node*.pid; do kill -9 $(cat $p) 2>/dev/null || true; done' EXIT
{keys}
machine() {{\n{write}\n{start}\n}}
        for number in 1 2 3; do machine $number; done
        for number in 1 2 3; do
            for _ in $(seq 3000); do grep -q ^ready node$number.out && break; sleep 0.1; done; grep ^ready node$number.out
        done
        for _ in $(seq 3000); do cairn --cluster 127.0.0.1:7400 --key ops-1.key fs ls / >/dev/null 2>&1 && break; sleep 0.1; done
{}\n{lose}\necho every command was run\n",
        part("### Use it")
    ));
    let out = run(dir.path(), &script, None);
    assert!(out.contains("2 more losses") && out.matches("on three machines").count() == 1, "{out}");
}
