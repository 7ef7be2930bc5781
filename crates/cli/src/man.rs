//! `cairn man DIR`: a manual page for each command, written from the command line that the program itself parses.
use crate::error::{CliError, Result};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "Example: cairn man /usr/local/share/man/man1 && man cairn-fs-put")]
pub struct ManArgs {
    /// An existing directory; pages of the same names in it are replaced
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl ManArgs {
    pub fn run(self, cli: clap::Command) -> Result<()> {
        let shown = self.directory.display().to_string();
        if !self.directory.is_dir() {
            let text = format!("{shown} is not a directory; make it with mkdir -p first");
            return Err(CliError::refused(crate::Exit::NotFound, text));
        }
        clap_mangen::generate_to(cli, &self.directory)
            .map_err(|error| CliError::refused(crate::Exit::Other, format!("{shown}: {error}; name another directory")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[derive(clap::Parser, Debug)]
    #[command(name = "cairn")]
    struct Cli {
        #[command(flatten)]
        global: crate::GlobalArgs,
        #[command(subcommand)]
        command: crate::Command,
    }

    /// A command would have no page, or a page without its options.
    #[test]
    fn each_command_has_a_page() {
        let dir = tempfile::tempdir().expect("dir");
        let man = ManArgs { directory: dir.path().to_owned() };
        man.run(Cli::command()).expect("pages");
        let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        assert!(page("cairn.1").contains("cairn\\-admin"), "{}", page("cairn.1"));
        let put = page("cairn-fs-put.1");
        for part in ["\\-\\-update", "\\-\\-layout", "\\-\\-cluster", "CAIRN_CLUSTER"] {
            assert!(put.contains(part), "{part}: {put}");
        }
        assert!(page("cairn-admin-volume-create.1").contains("\\-\\-partitions"));
    }

    /// Pages would be written somewhere else than was asked.
    #[test]
    fn a_directory_that_is_not_there_is_refused() {
        let man = ManArgs { directory: "/nonexistent/man".into() };
        let error = man.run(Cli::command()).expect_err("no directory");
        assert_eq!(error.exit(), crate::Exit::NotFound);
        assert!(error.to_string().contains("mkdir"), "{error}");
    }
}
