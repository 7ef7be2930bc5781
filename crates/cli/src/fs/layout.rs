//! `cairn fs layout get|set`: how new files of a directory are stored, and how a file is.
mod convert;

use crate::context::Context;
use crate::entry::layout_text;
use crate::error::{CliError, Result};
use crate::output::put_name;
use crate::remote::{NamedFor, expand_all};
use crate::report::Done;
use cairn_types::Layout;
use cairn_wire::meta::SetattrRequest;
use clap::{Args, Subcommand};
use convert::{CancelArgs, ConvertArgs, JobsArgs};
use serde_json::{Map, Value, json};
use std::ffi::OsString;

const LAYOUT: u32 = 1 << 8;

#[derive(Args, Debug)]
pub struct LayoutArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Show the layouts of files and directories
    Get {
        /// Remote paths or patterns
        #[arg(required = true)]
        paths: Vec<OsString>,
    },
    /// Set what new files of directories get, or that of empty files
    Set {
        /// r1, r2, r3, r4 or r5: so many copies on different disks
        layout: String,
        /// Remote directories, or files without contents
        #[arg(required = true)]
        paths: Vec<OsString>,
    },
    /// Give existing files another layout: the servers write their contents anew
    Convert(ConvertArgs),
    /// Show conversions that are queued, running or ended lately
    Jobs(JobsArgs),
    /// End conversions
    Cancel(CancelArgs),
}

/// Parses a layout that this version can store.
pub fn parse_layout(text: &str) -> Result<Layout> {
    let layout: Layout = text.parse()?;
    if layout.is_plain_replicated() {
        return Ok(layout);
    }
    Err(CliError::BadLayout(format!(
        "layout {layout} cannot be stored by this version, which keeps whole copies only; use r1, r2, r3, r4 or r5 \
         (so many copies, each on a disk in another failure domain)"
    )))
}

impl LayoutArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.action {
            Action::Get { paths } => get(context, &paths).await,
            Action::Set { layout, paths } => set(context, parse_layout(&layout)?, &paths).await,
            Action::Convert(args) => args.run(context).await,
            Action::Jobs(args) => args.run(context).await,
            Action::Cancel(args) => args.run(context).await,
        }
    }
}

async fn get(context: &Context, paths: &[OsString]) -> Result<()> {
    let report = context.plain_report();
    let found = expand_all(context, paths, true, &report).await;
    let several = found.len() + report.failed() as usize > 1;
    for found in found {
        report.done(Done::File(0));
        let layout = layout_text(found.attributes.layout);
        if context.out.is_json() {
            let mut object = Map::new();
            put_name(&mut object, "path", &found.at.path);
            object.insert("volume".into(), json!(found.at.volume));
            object.insert("layout".into(), json!(layout));
            context.out.json(&Value::Object(object))?;
        } else if several {
            let name = context.out.name(found.at.to_string().as_bytes());
            context.out.line([format!("{layout}  ").as_bytes(), &name].concat())?;
        } else {
            context.out.line(layout)?;
        }
    }
    report.finish()
}

async fn set(context: &Context, layout: Layout, paths: &[OsString]) -> Result<()> {
    let report = context.plain_report();
    for found in expand_all(context, paths, true, &report).await {
        let request = SetattrRequest { valid: LAYOUT, layout: layout.to_bits(), ..Default::default() };
        match found.volume.setattr(found.attributes.inode, &found.at.path, request).await {
            Ok(_) => report.done(Done::File(0)),
            Err(error) => report.fail(&error.named_for(&found.at).into()),
        }
    }
    report.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    /// A layout that cannot be stored would fail later, after data was sent.
    #[test]
    fn only_layouts_that_can_be_stored() {
        assert_eq!(parse_layout("r3").expect("r3"), Layout::replicated(3));
        for text in ["r0", "r6", "x", "rs-6-3/64k", "r2x128/64k", "r3>rs-10-4"] {
            let error = parse_layout(text).expect_err(text);
            assert_eq!(error.exit(), Exit::BadLayout);
            assert!(error.to_string().contains("r3"), "{error}");
        }
    }
}
