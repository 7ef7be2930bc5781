//! `cairn fs xattr ls|get|set|rm`: values that users attach to files.
use crate::context::Context;
use crate::error::Result;
use crate::output::{hex, put_name};
use crate::remote::{NamedFor, find};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

#[derive(Args, Debug)]
pub struct XattrArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Names of the attributes of a path
    Ls { path: OsString },
    /// The value of an attribute, as it is
    Get { path: OsString, name: OsString },
    /// Set an attribute
    Set { path: OsString, name: OsString, value: OsString },
    /// Remove an attribute
    Rm { path: OsString, name: OsString },
}

impl XattrArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let (Action::Ls { path } | Action::Get { path, .. } | Action::Set { path, .. } | Action::Rm { path, .. }) =
            &self.action;
        let found = find(context, context.remote(path)?, true).await?;
        let (inode, volume) = (found.attributes.inode, &found.volume);
        match &self.action {
            Action::Ls { .. } => {
                for name in volume.list_xattr(inode).await.map_err(|e| e.named_for(&found.at))? {
                    if context.out.is_json() {
                        let mut object = Map::new();
                        put_name(&mut object, "name", &name);
                        context.out.json(&Value::Object(object))?;
                    } else {
                        context.out.line(context.out.name(&name))?;
                    }
                }
            }
            Action::Get { name, .. } => {
                let value = volume.get_xattr(inode, name.as_bytes()).await.map_err(|e| e.named_for(&found.at))?;
                if context.out.is_json() {
                    let mut object = Map::new();
                    put_name(&mut object, "name", name.as_bytes());
                    object.insert("value_hex".into(), json!(hex(&value)));
                    put_name(&mut object, "value", &value);
                    context.out.json(&Value::Object(object))?;
                } else {
                    context.out.line(value)?;
                }
            }
            Action::Set { name, value, .. } => {
                let set = volume.set_xattr(inode, name.as_bytes(), value.as_bytes(), 0).await;
                set.map_err(|e| e.named_for(&found.at))?;
            }
            Action::Rm { name, .. } => {
                volume.remove_xattr(inode, name.as_bytes()).await.map_err(|e| e.named_for(&found.at))?;
            }
        }
        Ok(())
    }
}
