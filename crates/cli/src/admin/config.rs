//! `cairn admin config get|set`: settings of the whole cluster; all mistakes at once, and then nothing is set.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::table::{Align, Table};
use cairn_client::admin::settings::{NewSetting, Setting};
use clap::{Args, Subcommand};
use serde_json::json;

#[derive(Args, Debug)]
pub struct ConfigArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Show settings with their meaning
    Get {
        /// Only these; without any, all
        keys: Vec<String>,
    },
    /// Change settings
    Set {
        /// KEY=VALUE; an empty value sets the default again
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
}

impl ConfigArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.verb {
            Verb::Get { keys } => get(context, &keys).await,
            Verb::Set { settings } => set(context, &settings).await,
        }
    }
}

async fn all_items(context: &Context) -> Result<Vec<Setting>> {
    let client = context.client().await?;
    Ok(client.settings("asking for the settings").await?)
}

async fn get(context: &Context, keys: &[String]) -> Result<()> {
    let items = all_items(context).await?;
    let unknown: Vec<String> = keys
        .iter()
        .filter(|key| !items.iter().any(|item| item.key == **key))
        .map(|key| format!("{key:?} is no setting"))
        .collect();
    let shown: Vec<&Setting> = items.iter().filter(|item| keys.is_empty() || keys.contains(&item.key)).collect();
    let mut table =
        Table::new(&[("KEY", Align::Left), ("VALUE", Align::Left), ("DEFAULT", Align::Left), ("MEANING", Align::Left)]);
    for item in &shown {
        if context.out.is_json() {
            context.out.json(&json!({
                "key": item.key, "value": item.value, "default": item.default_value, "help": item.help,
            }))?;
        }
        table.row(vec![item.key.clone(), item.value.clone(), item.default_value.clone(), item.help.clone()]);
    }
    match (&shown[..], keys.len()) {
        _ if context.out.is_json() => {}
        ([only], 1) => context.out.line(&only.value)?,
        ([], _) => {}
        _ => table.print(&context.out)?,
    }
    mistakes(unknown, "cairn admin config get shows all settings")
}

async fn set(context: &Context, settings: &[String]) -> Result<()> {
    let (items, wrong) = parse(settings);
    // The manager checks the rest, so that all mistakes come at once; nothing of a wrong set is sent.
    let mut wrong = wrong;
    if !wrong.is_empty() {
        let known = all_items(context).await?;
        let unknown = items.iter().filter(|item| !known.iter().any(|k| k.key == item.key));
        wrong.extend(unknown.map(|item| format!("{:?} is no setting", item.key)));
        return mistakes(wrong, "nothing was set; cairn admin config get shows all settings with their meaning");
    }
    let client = context.client().await?;
    let wrong = client.set_settings("changing settings", &items).await?;
    mistakes(wrong, "nothing was set; cairn admin config get shows all settings with their meaning")?;
    let now = if items.iter().any(|item| item.value.is_empty()) { all_items(context).await? } else { Vec::new() };
    if context.out.is_json() {
        return tell(context, &items);
    }
    items.iter().try_for_each(|item| context.out.line(line(item, &now)))
}

/// What was set, with the value of a default that counts again.
fn line(item: &NewSetting, now: &[Setting]) -> String {
    let default = now.iter().find(|known| known.key == item.key).filter(|_| item.value.is_empty());
    match default {
        Some(known) => format!("{} = {} (the default)", item.key, known.value),
        None => format!("{} = {}", item.key, item.value),
    }
}

/// What was set, for programs.
pub(super) fn tell(context: &Context, items: &[NewSetting]) -> Result<()> {
    items.iter().try_for_each(|item| context.out.json(&json!({ "key": item.key, "value": item.value })))
}

/// Splits `KEY=VALUE`; what is wrong comes as sentences.
pub(super) fn parse(settings: &[String]) -> (Vec<NewSetting>, Vec<String>) {
    let (mut items, mut wrong): (Vec<NewSetting>, Vec<String>) = (Vec::new(), Vec::new());
    for setting in settings {
        match setting.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
                if items.iter().any(|item| item.key == key) {
                    wrong.push(format!("{key:?} is set twice"));
                }
                items.push(NewSetting { key, value });
            }
            _ => wrong.push(format!("{setting:?} is not KEY=VALUE")),
        }
    }
    (items, wrong)
}

/// Refuses what has mistakes, with all of them.
pub(super) fn mistakes(list: Vec<String>, next_step: &str) -> Result<()> {
    match list.is_empty() {
        true => Ok(()),
        false => {
            let text = format!("{} in the settings:\n  - {}\n{next_step}", count(list.len()), list.join("\n  - "));
            Err(CliError::refused(Exit::BadConfig, text))
        }
    }
}

fn count(number: usize) -> String {
    if number == 1 { "a mistake".into() } else { format!("{number} mistakes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `X=` would be answered by `X =`, and nobody would know what counts now.
    #[test]
    fn a_default_is_told_with_its_value() {
        let item = |key: &str, value: &str| NewSetting { key: key.into(), value: value.into() };
        let known = |key: &str, value: &str| Setting { key: key.into(), value: value.into(), ..Setting::default() };
        let now = [known("repair_delay", "15m"), known("node_timeout", "20s")];
        assert_eq!(line(&item("repair_delay", ""), &now), "repair_delay = 15m (the default)");
        assert_eq!(line(&item("node_timeout", "20s"), &now), "node_timeout = 20s");
    }

    /// Somebody would mend one mistake, run it again and meet the next.
    #[test]
    fn all_mistakes_come_at_once() {
        let texts: Vec<String> = ["a=1", "b", "=2", "a=3", "c = x=y"].map(String::from).to_vec();
        let (items, wrong) = parse(&texts);
        assert_eq!(items.last().map(|item| (item.key.as_str(), item.value.as_str())), Some(("c", "x=y")));
        assert_eq!(wrong.len(), 3);
        let error = mistakes(wrong, "next").expect_err("wrong");
        assert_eq!(error.exit(), Exit::BadConfig);
        let text = error.to_string();
        assert!(
            text.contains("3 mistakes") && text.contains("\"b\"") && text.contains("twice") && text.contains("next")
        );
        assert!(mistakes(Vec::new(), "").is_ok());
    }
}
