//! `cairn fs readlink`.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs::read_flags::StaleFlags;
use crate::mode;
use crate::output::put_name;
use crate::remote::expand_all;
use crate::report::Done;
use clap::Args;
use serde_json::{Map, Value};
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct ReadlinkArgs {
    /// Remote symbolic links or patterns
    #[arg(required = true)]
    paths: Vec<OsString>,
    #[command(flatten)]
    stale: StaleFlags,
}

impl ReadlinkArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        self.stale.apply(context);
        let report = context.plain_report();
        for found in expand_all(context, &self.paths, false, &report).await {
            if !mode::is_symlink(found.attributes.mode) {
                let text = format!("{} is no symbolic link but a {}", found.at, mode::type_name(found.attributes.mode));
                report.fail(&CliError::refused(Exit::WrongKind, text));
                continue;
            }
            match found.volume.readlink_inode(found.attributes.inode, &found.at.path).await {
                Err(error) => report.fail(&error.into()),
                Ok(target) => {
                    report.done(Done::Symlink);
                    if context.out.is_json() {
                        let mut object = Map::new();
                        put_name(&mut object, "path", &found.at.path);
                        put_name(&mut object, "target", &target);
                        context.out.json(&Value::Object(object))?;
                    } else {
                        context.out.line(context.out.name(&target))?;
                    }
                }
            }
        }
        report.finish()
    }
}
