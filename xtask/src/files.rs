//! The project's files: every `.rs` and `.md` below the root, but for build output and hidden directories.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// One text file. `path` is relative to the root and is how messages name it.
#[derive(Debug, Clone)]
pub struct SourceFile {
    pub path: PathBuf,
    pub text: String,
}

impl SourceFile {
    pub fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|found| found == extension)
    }
}

/// All of them, sorted by path.
pub fn walk(root: &Path) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))? {
            let entry = entry.with_context(|| format!("listing {}", dir.display()))?;
            let path = entry.path();
            let name = entry.file_name();
            let kind = entry.file_type().with_context(|| format!("looking at {}", path.display()))?;
            let hidden = name.to_string_lossy().starts_with('.');
            if kind.is_dir() && !hidden && name != "target" {
                open.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|found| found == "rs" || found == "md") {
                let bytes = match fs::read(&path) {
                    Ok(bytes) => bytes,
                    // Written by an editor and gone again: it is no file of the project.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(error) => {
                        return Err(error).with_context(|| format!("reading {}", path.display()));
                    }
                };
                let relative = path.strip_prefix(root).context("a file outside the root")?.to_path_buf();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                files.push(SourceFile { path: relative, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
