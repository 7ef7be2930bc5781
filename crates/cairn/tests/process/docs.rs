//! What the documentation says is what the program does: commands are run, tables are compared.
use crate::support::{binary, free_base, text};
use crate::wait::PATIENT;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project")
}

/// A page of the documentation.
pub fn page(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `PATH` with the program under test first; its commands wait for servers as long as a slow machine needs.
pub fn path_with_binary(dir: &Path) -> String {
    let (bin, program) = (dir.join("bin"), dir.join("bin/cairn"));
    fs::create_dir(&bin).expect("directory");
    let script = format!(
        "#!/bin/sh\ncase $1 in dev|server) ;; *) set -- --timeout {PATIENT} \"$@\" ;; esac\nexec '{}' \"$@\"\n",
        binary()
    );
    fs::write(&program, script).expect("script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default())
}

/// Replaces what stands exactly so often in a script; a page that was changed has its test changed, too.
pub fn replaced(script: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(script.to_owned(), |script, (from, to)| {
        assert!(script.contains(from), "{from:?} is no longer on the page");
        script.replace(from, to)
    })
}

/// The `sh` blocks of a page, in order.
pub fn shell_blocks(page: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for line in page.lines() {
        match line.trim_end() {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => {
                out.push_str(line);
                out.push('\n');
            }
            _ => {}
        }
    }
    out
}

/// A reader who copies the commands of the deployment guide gets a cluster that strangers stay out of.
#[test]
fn the_deployment_guide_works_as_it_is_written() {
    let (out, error) = deployed(&with_looks(&shell_blocks(&page("docs/guides/deploy.md"))));
    looked(&out, &error);
}

/// The commands of the deployment guide with those of the security guide for a cluster that runs.
fn with_looks(deploy: &str) -> String {
    let end = "for pid in cluster/*.pid";
    let security = shell_blocks(&page("docs/guides/security.md"));
    let (_, looks) = security.split_once("# The cluster runs.\n").expect("what is done after the start");
    replaced(deploy, &[(end, &format!("{looks}\n{end}"))])
}

/// A reader who makes keys as files, as the security guide says, in the place of those that processes fetch, gets the
/// same.
#[test]
fn the_security_guide_works_as_it_is_written() {
    let deploy = shell_blocks(&page("docs/guides/deploy.md"));
    let (before, rest) = deploy.split_once("AUTHORITY=").expect("where processes get their keys");
    let begin = "for config in cluster/manager?.toml";
    let (_, start) = rest.split_once(begin).expect("the start");
    let security = shell_blocks(&page("docs/guides/security.md"));
    let (keys, _) = security.split_once("# The cluster runs.\n").expect("what is done before the start");
    let (out, error) = deployed(&with_looks(&format!("{before}{keys}\n{begin}{start}")));
    looked(&out, &error);
}

fn looked(out: &str, error: &str) {
    assert!(out.contains("refused with 5"), "{out}\n{error}");
    assert!(out.contains("key of client alice") && out.contains("key of node manager1 (manager)"), "{out}");
}

/// Runs the commands of the deployment guide, or these with others between them: standard output and error.
fn deployed(script: &str) -> (String, String) {
    assert!(script.matches("BASE=7400\n").count() == 1, "the guide sets its ports in one place");
    // The metrics of each process are 80 above its port.
    let base = free_base(110);
    // Ten times the patience that the guide has.
    let script = replaced(script, &[("BASE=7400\n", &format!("BASE={base}\n")), ("$(seq 300)", "$(seq 3000)")]);
    let dir = tempfile::tempdir().expect("dir");
    // Whatever happens, what the guide started is ended by its process ids.
    let script = format!(
        "set -euo pipefail\ntrap 'for p in cluster/*.pid; do kill -9 $(cat $p) 2>/dev/null || true; done' EXIT\n{script}"
    );
    let file = dir.path().join("guide.sh");
    fs::write(&file, script).expect("script");
    let output = Command::new("bash")
        .arg(&file)
        .current_dir(dir.path())
        .env("PATH", path_with_binary(dir.path()))
        .env_remove("CAIRN_KEY")
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
    assert!(out.matches("hello, cairn").count() >= 2, "{out}");
    assert!(out.matches("ready cluster=").count() >= 9, "{out}");
    (out, error)
}

/// A reader who copies the commands of the README and of the guides gets errors: each is run in one `cairn dev`.
#[test]
fn commands_of_readme_and_guides_work_as_they_are_written() {
    let dir = tempfile::Builder::new().prefix("cairn-docs-").tempdir().expect("dir");
    let address = format!("127.0.0.1:{}", free_base(1));
    let dev = format!("cairn dev --listen {address} --data-dir cluster >dev.out 2>dev.log &");
    let ready = "for _ in $(seq 3000); do grep -q ^ready dev.out && break; sleep 0.1; done";
    let readme = shell_blocks(&page("README.md"));
    let (_, readme) = readme.split_once("make release\n").expect("the README begins with a build");
    let readme = replaced(
        readme,
        &[
            ("export PATH=\"$PWD/target/release:$PATH\"\n", ""),
            // A person waits for the `ready` that the comment behind it speaks of.
            ("cairn dev --data-dir /tmp/cairn &", &format!("{dev}\ntrap \"kill -9 $!\" EXIT\n{ready}\n")),
            ("~/some/tree", "some/tree"),
        ],
    );
    let http = "$(grep -o 'http=[^ ]*' dev.out | head -1 | cut -d= -f2)";
    let operate = replaced(&shell_blocks(&page("docs/guides/operate.md")), &[("HOST:PORT", http)]);
    let layouts = replaced(
        &shell_blocks(&page("docs/guides/layouts.md")),
        // The job has ended long ago here, which is refused.
        &[("cairn fs layout cancel 2", "cairn fs layout cancel 2 || test $? -ne 2")],
    );
    let before_layouts = "
        head -c 3000000 /dev/urandom > model.bin
        cairn fs mkdir /old-directory /models && cairn fs put model.bin /old-directory/";
    // What the guide's directories are supposed to have is put there after the command that makes the first of them.
    let (first, rest) = layouts.split_once('\n').expect("commands");
    let in_layouts = "
        cairn fs mkdir /archive/hot && cairn fs put model.bin /archive/hot/ && cairn fs put model.bin /archive/big";
    let ends = "
        cairn fs cat /archive/hot/model.bin | cmp - model.bin
        cairn fs cat /old-directory/model.bin | cmp - model.bin
        cmp some/tree/a copy/a 2>/dev/null || cmp some/tree/a copy/tree/a
        echo every command was run";
    let script =
        format!("set -euxo pipefail\n{readme}\n{operate}\n{before_layouts}\n{first}\n{in_layouts}\n{rest}\n{ends}\n");
    fs::create_dir_all(dir.path().join("some/tree")).expect("tree");
    fs::write(dir.path().join("some/tree/a"), "hello").expect("file");
    fs::write(dir.path().join("guide.sh"), script).expect("script");
    let output = Command::new("bash")
        .arg("guide.sh")
        .current_dir(dir.path())
        .env("PATH", path_with_binary(dir.path()))
        // Where its key goes.
        .env("HOME", dir.path())
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("CAIRN_KEY")
        .env("CAIRN_CLUSTER", &address)
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("every command was run"), "{out}\n{error}");
}

/// Other implementations are written from the tables of the protocol page.
#[test]
fn the_protocol_page_lists_every_operation_and_error() {
    let page = fs::read_to_string(root().join("docs/reference/protocol.md")).expect("page");
    for opcode in Opcode::ALL {
        let row = format!("| {} | `{:#06x}` |", opcode.name(), opcode.code());
        assert!(page.contains(&row), "no row {row}");
    }
    for code in ErrorCode::ALL {
        let retry = format!("{:?}", code.retry());
        let row = format!(
            "| {} | {} | {retry} | {} | {} | `{}` |",
            code.name(),
            code.code(),
            code.errno(),
            code.s3(),
            code.hadoop()
        );
        assert!(page.contains(&row), "no row {row}");
    }
}
