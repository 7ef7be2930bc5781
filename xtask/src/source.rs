//! Rules about the source text of every `.rs` file, each with a line number and what to do instead.
//!
//! Works on a masked copy of the text, in which comments and the contents of strings are blank, so that a rule never
//! trips over prose. It is no parser: macros are read as they stand.

mod functions;
pub mod mask;
pub mod regions;
mod rules;
#[cfg(test)]
mod tests;

use crate::cargo::Workspace;
use crate::files::SourceFile;
use crate::findings::Findings;
use crate::layers;
use anyhow::Result;
use mask::mask;
use regions::TestRegions;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One file, masked, with what in it is test code.
struct Scanned<'a> {
    file: &'a SourceFile,
    /// As long as the text, byte for byte, with comments and string contents blank.
    masked: String,
    tests: TestRegions,
    /// The whole file is test code.
    is_test: bool,
    /// It is code of a crate of layers 0-2.
    is_pure: bool,
}

impl Scanned<'_> {
    fn in_test(&self, offset: usize) -> bool {
        self.is_test || self.tests.contains(offset)
    }

    /// `path:line`, as editors and terminals understand it.
    fn at(&self, offset: usize) -> String {
        format!("{}:{}", self.file.path.display(), line_of(&self.masked, offset))
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count() + 1
}

pub fn check(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    let pure_dirs: Vec<PathBuf> = workspace
        .members()
        .filter(|package| layers::is_pure(package.short_name()))
        .filter_map(|package| package.dir.strip_prefix(&workspace.root).ok().map(Path::to_path_buf))
        .collect();
    let scanned = scan(&workspace.files, &pure_dirs);
    for file in &scanned {
        rules::apply(file, findings);
    }
    Ok(())
}

fn scan<'a>(files: &'a [SourceFile], pure_dirs: &[PathBuf]) -> Vec<Scanned<'a>> {
    let mut scanned: Vec<Scanned> = files
        .iter()
        .filter(|file| file.is("rs"))
        .map(|file| {
            let masked = mask(&file.text);
            let tests = TestRegions::of(&masked);
            let is_test = tests.whole_file || file.path.components().any(|part| part.as_os_str() == "tests");
            let in_pure_dir = pure_dirs.iter().any(|dir| file.path.starts_with(dir));
            // Build scripts, examples and benchmarks are programs beside the crate, not the crate.
            let is_beside = file.path.ends_with("build.rs")
                || file.path.components().any(|part| part.as_os_str() == "examples" || part.as_os_str() == "benches");
            let is_pure = in_pure_dir && !is_beside;
            Scanned { file, masked, tests, is_test, is_pure }
        })
        .collect();
    let declared: BTreeSet<PathBuf> = scanned.iter().flat_map(declared_test_modules).collect();
    for file in &mut scanned {
        let without_extension = file.file.path.with_extension("");
        file.is_test |= declared.iter().any(|module| without_extension.starts_with(module));
    }
    scanned
}

/// Modules that the file declares for tests only, as paths without `.rs`: `src/foo/tests` for
/// `#[cfg(test)] mod tests;` in `src/foo.rs`.
fn declared_test_modules(scanned: &Scanned) -> Vec<PathBuf> {
    let path = &scanned.file.path;
    let parent = path.parent().unwrap_or(Path::new(""));
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let dir = if matches!(stem.as_str(), "lib" | "main" | "mod") { parent.to_path_buf() } else { parent.join(stem) };
    scanned.tests.declared_modules.iter().map(|name| dir.join(name)).collect()
}
