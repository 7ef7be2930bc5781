//! What the documentation says is what the program does: commands are run, tables are compared.
use crate::support::{binary, free_base, text};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project")
}

/// The `sh` blocks of a page, in order.
fn shell_blocks(page: &str) -> String {
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

/// A reader who copies the commands of the deployment guide gets a cluster.
#[test]
fn the_deployment_guide_works_as_it_is_written() {
    let page = fs::read_to_string(root().join("docs/guides/deploy.md")).expect("page");
    let script = shell_blocks(&page);
    assert!(script.matches("BASE=7400\n").count() == 1, "the guide sets its ports in one place");
    let base = free_base(100);
    let script = script.replace("BASE=7400\n", &format!("BASE={base}\n"));
    let dir = tempfile::tempdir().expect("dir");
    let path = format!(
        "{}:{}",
        Path::new(binary()).parent().expect("directory").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    // Whatever happens, what the guide started is ended by its process ids.
    let script = format!(
        "set -euo pipefail\ntrap 'for p in cluster/*.pid; do kill -9 $(cat $p) 2>/dev/null || true; done' EXIT\n{script}"
    );
    let file = dir.path().join("guide.sh");
    fs::write(&file, script).expect("script");
    let output = Command::new("bash")
        .arg(&file)
        .current_dir(dir.path())
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
    assert!(out.matches("hello, cairn").count() >= 2, "{out}");
    assert!(out.matches("ready cluster=").count() >= 9, "{out}");
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
