//! `cairn fs …`: one verb a file.
mod append;
mod cat;
mod chmod;
mod chown;
mod clone;
mod count;
mod cp;
mod df;
mod du;
mod find;
mod get;
mod head;
mod layout;
mod ln;
mod ls;
mod mkdir;
mod mv;
mod put;
mod quota;
mod quota_note;
mod read_flags;
mod readlink;
mod rm;
mod rmdir;
mod shard;
mod snapshot;
mod stat;
mod store_flags;
mod tail;
mod touch;
pub(crate) mod trash;
mod truncate;
mod xattr;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::fs::read_flags::HiddenStale;
use clap::{Args, Subcommand};

pub(crate) use layout::{LAYOUTS, parse_layout};

/// `cairn fs`
#[derive(Args, Debug)]
#[command(after_help = "A remote path is /dir/file (volume \"default\"), volume:/dir/file, or \
    cairn://host:port[,host:port]/volume/dir/file.\nPatterns (* ? [a-z]) in remote paths are expanded on the remote side; \
    quote them, or the shell expands them with local names.")]
pub struct FsArgs {
    /// The same as behind the verb
    #[command(flatten)]
    stale: HiddenStale,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List directories
    Ls(ls::LsArgs),
    /// Show all attributes
    Stat(stat::StatArgs),
    /// Make directories
    Mkdir(mkdir::MkdirArgs),
    /// Store local files and trees
    Put(put::PutArgs),
    /// Fetch remote files and trees
    Get(get::GetArgs),
    /// Append standard input to a file
    Append(append::AppendArgs),
    /// Print files
    Cat(cat::CatArgs),
    /// Copy within or between clusters
    Cp(cp::CpArgs),
    /// Copy within a volume without copying data
    Clone(clone::CloneArgs),
    /// Move or rename
    Mv(mv::MvArgs),
    /// Remove files and trees
    Rm(rm::RmArgs),
    /// What rm removed, until its time is over
    Trash(trash::TrashArgs),
    /// Remove empty directories
    Rmdir(rmdir::RmdirArgs),
    /// Spread the names of huge directories over partitions
    Shard(shard::ShardArgs),
    /// Sum sizes of trees
    Du(du::DuArgs),
    /// Show what volumes use and what is free
    Df(df::DfArgs),
    /// Find files by name, type, size, age
    Find(find::FindArgs),
    /// Print the end of a file
    Tail(tail::TailArgs),
    /// Print the beginning of files
    Head(head::HeadArgs),
    /// Count files, directories and bytes of trees
    Count(count::CountArgs),
    /// Cut files, or make them longer
    Truncate(truncate::TruncateArgs),
    /// Make empty files, set times
    Touch(touch::TouchArgs),
    /// Make links
    Ln(ln::LnArgs),
    /// Print where symbolic links point
    Readlink(readlink::ReadlinkArgs),
    /// Change permissions
    Chmod(chmod::ChmodArgs),
    /// Change owners
    Chown(chown::ChownArgs),
    /// Show or set layouts
    Layout(layout::LayoutArgs),
    /// Limits of directories and volumes
    Quota(quota::QuotaArgs),
    /// Snapshots of volumes: take, list, restore, compare
    Snapshot(snapshot::SnapshotArgs),
    /// Extended attributes
    Xattr(xattr::XattrArgs),
}

impl Verb {
    /// It changes nothing and asks for nothing but names and contents.
    fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Ls(_)
                | Self::Stat(_)
                | Self::Get(_)
                | Self::Cat(_)
                | Self::Du(_)
                | Self::Find(_)
                | Self::Tail(_)
                | Self::Head(_)
                | Self::Count(_)
                | Self::Readlink(_)
        )
    }
}

impl FsArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        if self.stale.is_set() {
            if !self.verb.only_reads() {
                let text = "--stale-ok is for commands that only read: ls, stat, get, cat, head, tail, \
                            du, count, find, readlink; \
                            everything else needs the leader";
                return Err(CliError::usage(text));
            }
            self.stale.apply(context);
        }
        let result = self.verb.run(context).await;
        let met = result.as_ref().err().and_then(|error| error.beyond_quota()).map(str::to_owned);
        if let Some(what) = met.or_else(|| context.beyond_quota()) {
            quota_note::say(context, &what).await;
        }
        result
    }
}

impl Verb {
    async fn run(self, context: &Context) -> Result<()> {
        // One of many futures is alive at a time; boxed, the largest does not size them all.
        match self {
            Self::Ls(args) => Box::pin(args.run(context)).await,
            Self::Stat(args) => Box::pin(args.run(context)).await,
            Self::Mkdir(args) => Box::pin(args.run(context)).await,
            Self::Put(args) => Box::pin(args.run(context)).await,
            Self::Get(args) => Box::pin(args.run(context)).await,
            Self::Append(args) => Box::pin(args.run(context)).await,
            Self::Cat(args) => Box::pin(args.run(context)).await,
            Self::Cp(args) => Box::pin(args.run(context)).await,
            Self::Clone(args) => Box::pin(args.run(context)).await,
            Self::Mv(args) => Box::pin(args.run(context)).await,
            Self::Rm(args) => Box::pin(args.run(context)).await,
            Self::Trash(args) => Box::pin(args.run(context)).await,
            Self::Rmdir(args) => Box::pin(args.run(context)).await,
            Self::Shard(args) => Box::pin(args.run(context)).await,
            Self::Du(args) => Box::pin(args.run(context)).await,
            Self::Df(args) => Box::pin(args.run(context)).await,
            Self::Find(args) => Box::pin(args.run(context)).await,
            Self::Tail(args) => Box::pin(args.run(context)).await,
            Self::Head(args) => Box::pin(args.run(context)).await,
            Self::Count(args) => Box::pin(args.run(context)).await,
            Self::Truncate(args) => Box::pin(args.run(context)).await,
            Self::Touch(args) => Box::pin(args.run(context)).await,
            Self::Ln(args) => Box::pin(args.run(context)).await,
            Self::Readlink(args) => Box::pin(args.run(context)).await,
            Self::Chmod(args) => Box::pin(args.run(context)).await,
            Self::Chown(args) => Box::pin(args.run(context)).await,
            Self::Layout(args) => Box::pin(args.run(context)).await,
            Self::Quota(args) => Box::pin(args.run(context)).await,
            Self::Snapshot(args) => Box::pin(args.run(context)).await,
            Self::Xattr(args) => Box::pin(args.run(context)).await,
        }
    }
}
