//! Tells the program which commit it is made of: `CAIRN_COMMIT` of the environment, else what git says of the checkout.
//!
//! Only this crate is compiled again at a commit. Outside of a checkout the commit is "unknown".
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CAIRN_COMMIT");
    let given = std::env::var("CAIRN_COMMIT").ok().filter(|given| !given.trim().is_empty());
    let commit = given.or_else(of_checkout).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=CAIRN_COMMIT={}", commit.trim());
}

fn of_checkout() -> Option<String> {
    // A checkout that merely has these sources somewhere below it is not theirs.
    let root = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR")?).join("../..").canonicalize().ok()?;
    if PathBuf::from(git(&root, &["rev-parse", "--show-toplevel"])?).canonicalize().ok()? != root {
        return None;
    }
    // The log of HEAD grows with each commit and checkout; where there is none, HEAD and the branch tell.
    for name in ["logs/HEAD", "HEAD"] {
        if let Some(path) = git(&root, &["rev-parse", "--git-path", name]).map(|path| root.join(path))
            && path.exists()
        {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&root, &["rev-parse", "--short=12", "HEAD"])
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
