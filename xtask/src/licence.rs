//! Checks every dependency's licence expression (SPDX) against the allow-list in `deny.toml`.
//!
//! Runs without any other tool, from what `cargo metadata` says. It trusts the expression that a package declares and
//! does not read licence texts.

use crate::cargo::Workspace;
use crate::deny::Policy;
use crate::findings::Findings;
use anyhow::Result;

/// Ours, for every crate of the workspace.
const OUR_LICENCE: &str = "Apache-2.0";

#[cfg(test)]
mod tests;

pub fn check(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    let policy = Policy::load(&workspace.root)?;
    let mut used_exceptions = Vec::new();
    for package in &workspace.packages {
        let named = format!("{} {}", package.name, package.version);
        let Some(declared) = package.licence.as_deref() else {
            findings
                .fail(format!("{named}: declares no licence; look for another crate, or settle it with its authors"));
            continue;
        };
        if package.member {
            if declared != OUR_LICENCE {
                findings.fail(format!("{named}: is ours and must say license = \"{OUR_LICENCE}\", not \"{declared}\""));
            }
            continue;
        }
        let mut allowed: Vec<&str> = policy.licences.iter().map(String::as_str).collect();
        match satisfied(declared, &allowed) {
            Ok(true) => continue,
            Ok(false) => {}
            Err(why) => {
                findings.fail(format!("{named}: cannot read its licence \"{declared}\": {why}"));
                continue;
            }
        }
        let exception = policy.licence_exceptions.iter().find(|exception| exception.package == package.name);
        if let Some(exception) = exception {
            allowed.extend(exception.licences.iter().map(String::as_str));
            used_exceptions.push(exception.package.as_str());
        }
        if satisfied(declared, &allowed) != Ok(true) {
            findings.fail(format!(
                "{named}: its licence \"{declared}\" is not met by the allow-list in deny.toml; look for another crate, \
                 or add an exception by name with a reason"
            ));
        }
    }
    for exception in &policy.licence_exceptions {
        if !used_exceptions.contains(&exception.package.as_str()) {
            findings.warn(format!("deny.toml: the licence exception for {} is not needed", exception.package));
        }
    }
    Ok(())
}

/// Can the expression be met with the allowed licences alone?
///
/// Grammar: `or := and (OR and)*`, `and := term (AND term)*`, `term := "(" or ")" | id [WITH id]`. A slash is the old
/// way to write OR. A licence with an exception is one entry of the allow-list, `A WITH B`.
fn satisfied(expression: &str, allowed: &[&str]) -> Result<bool, String> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { tokens: &tokens, allowed };
    let met = parser.or()?;
    match parser.tokens.first() {
        None => Ok(met),
        Some(extra) => Err(format!("\"{extra}\" is not expected there")),
    }
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    allowed: &'a [&'a str],
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.tokens.first().is_some_and(|token| *token == word);
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    fn or(&mut self) -> Result<bool, String> {
        let mut met = self.and()?;
        while self.take("OR") {
            met |= self.and()?;
        }
        Ok(met)
    }

    fn and(&mut self) -> Result<bool, String> {
        let mut met = self.term()?;
        while self.take("AND") {
            met &= self.term()?;
        }
        Ok(met)
    }

    fn term(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let met = self.or()?;
            return if self.take(")") { Ok(met) } else { Err("a bracket is not closed".to_string()) };
        }
        let licence = self.id()?;
        let full = if self.take("WITH") { format!("{licence} WITH {}", self.id()?) } else { licence };
        Ok(self.allowed.contains(&full.as_str()))
    }

    fn id(&mut self) -> Result<String, String> {
        match self.tokens.split_first() {
            Some((id, rest)) if !matches!(*id, "OR" | "AND" | "WITH" | "(" | ")") => {
                self.tokens = rest;
                Ok(id.to_string())
            }
            Some((other, _)) => Err(format!("a licence is expected, not \"{other}\"")),
            None => Err("it ends where a licence is expected".to_string()),
        }
    }
}
