//! What runs did: faults that fired, rows of the tables that were used. A run without a fault proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use cairn_replica_core::chunk_job::Outcome;
use cairn_replica_core::input::Note;
use cairn_replica_core::message::Request;
use cairn_replica_core::reconcile::Purpose;
use cairn_replica_core::role::Role;
use cairn_replica_core::source::SourceKind;
use cairn_types::ErrorCode;

/// What was compared: role, purpose, source.
pub type Compared = (Role, &'static str, Option<SourceKind>);

/// As named above.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often, by name.
    pub of: BTreeMap<&'static str, u64>,
    /// Requests: role, what, whether it was done.
    pub requests: BTreeMap<(Option<Role>, &'static str, bool), u64>,
    /// What was compared.
    pub compared: BTreeMap<Compared, BTreeMap<(&'static str, Option<u16>), u64>>,
    /// Inputs of replicas.
    pub steps: u64,
    /// Seeds.
    pub seeds: u64,
}

impl Counts {
    /// Once more.
    pub fn add(&mut self, name: &'static str) {
        *self.of.entry(name).or_default() += 1;
    }

    /// How often.
    pub fn get(&self, name: &str) -> u64 {
        self.of.get(name).copied().unwrap_or(0)
    }

    /// A replica said something.
    pub fn note(&mut self, note: &Note) {
        match note {
            Note::Entered(_, role) => self.add(entered(*role)),
            Note::CaughtUp(_) => self.add("caught up"),
            Note::Compared { role, purpose, source, outcome, .. } => {
                let (ended, code) = ended(*outcome);
                let row = self.compared.entry((*role, purpose_name(*purpose), *source)).or_default();
                *row.entry((ended, code.map(ErrorCode::code))).or_default() += 1;
            }
        }
    }

    /// A request was answered.
    pub fn answered(&mut self, role: Option<Role>, what: &'static str, done: bool) {
        *self.requests.entry((role, what, done)).or_default() += 1;
    }

    /// Together with those of other runs.
    pub fn merge(&mut self, other: &Counts) {
        for (name, count) in &other.of {
            *self.of.entry(name).or_default() += count;
        }
        for (key, count) in &other.requests {
            *self.requests.entry(*key).or_default() += count;
        }
        for (key, row) in &other.compared {
            let all = self.compared.entry(*key).or_default();
            row.iter().for_each(|(key, count)| *all.entry(*key).or_default() += count);
        }
        self.steps += other.steps;
        self.seeds += other.seeds;
    }

    /// How often a role moved bytes of a source.
    pub fn moved(&self, role: Role, source: SourceKind) -> u64 {
        let of = self.compared.iter().filter(|((of, _, from), _)| *of == role && *from == Some(source));
        of.flat_map(|(_, row)| row.values()).sum()
    }

    /// How many faults fired.
    pub fn faults(&self) -> u64 {
        self.of.iter().filter(|(name, _)| name.starts_with("fault: ")).map(|(_, count)| count).sum()
    }
}

fn entered(role: Role) -> &'static str {
    match role {
        Role::Leading => "entered: leading",
        Role::Serving => "entered: serving",
        Role::Syncing => "entered: syncing",
        Role::Joining => "entered: joining",
        Role::Waiting => "entered: waiting",
        Role::Offline => "entered: offline",
        Role::Former => "entered: former",
        Role::Retired => "entered: retired",
    }
}

fn purpose_name(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::End => "end",
        Purpose::Equalise => "equalise",
        Purpose::Follow { .. } => "follow",
        Purpose::Restore => "restore",
        Purpose::Shard => "shard",
    }
}

fn ended(outcome: Outcome) -> (&'static str, Option<ErrorCode>) {
    match outcome {
        Outcome::Done { same: true } => ("same", None),
        Outcome::Done { same: false } => ("changed", None),
        Outcome::Arrives => ("arrives by itself", None),
        Outcome::Wait => ("waits", None),
        Outcome::Nowhere => ("nowhere", None),
        Outcome::Settled => ("nothing to bring", None),
        Outcome::Conflict => ("contradiction", None),
        Outcome::Failed(refused) => ("failed", Some(refused.code)),
    }
}

/// What a request is called.
pub fn name_of<P>(request: &Request<P>) -> &'static str {
    match request {
        Request::Apply(_) => "state",
        Request::Allocate { .. } => "indices",
        Request::Reserve { .. } => "mark",
        Request::Append(asked) if asked.repair => "repair",
        Request::Append(_) => "append",
        Request::Sync(_) => "sync",
        Request::Seal(_) => "seal",
        Request::Overwrite(_) => "overwrite",
        Request::Read(asked) if asked.last_resort.is_some() => "read at last",
        Request::Read(asked) if asked.sure => "read surely",
        Request::Read(_) => "read",
        Request::List(_) => "list",
        Request::Table { .. } => "table",
        Request::Free { .. } => "free",
        Request::BadBlock { .. } => "bad block",
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} seeds, {} steps", self.seeds, self.steps)?;
        for (name, count) in &self.of {
            writeln!(f, "{count:>12}  {name}")?;
        }
        writeln!(f, "\nrequests: done, refused")?;
        for role in std::iter::once(None).chain(Role::ALL.map(Some)) {
            let of = self.requests.keys().filter(|(of, _, _)| *of == role).map(|(_, what, _)| *what);
            let mut whats: Vec<&str> = of.collect();
            whats.dedup();
            for what in whats {
                let count = |done| self.requests.get(&(role, what, done)).copied().unwrap_or(0);
                let name = role.map_or_else(|| "no epoch yet".to_owned(), |role| format!("{role:?}").to_lowercase());
                writeln!(f, "{:>12} {:>10}  {name}: {what}", count(true), count(false))?;
            }
        }
        writeln!(f, "\ncompared: role, purpose, source")?;
        for ((role, purpose, source), row) in &self.compared {
            let total: u64 = row.values().sum();
            let source = source.map_or_else(|| "nothing moved".to_owned(), |of| format!("{of:?}").to_lowercase());
            let role = format!("{role:?}").to_lowercase();
            let ends: Vec<String> = row
                .iter()
                .map(|((ended, code), count)| {
                    let name = code.and_then(ErrorCode::from_code).map_or("", ErrorCode::name);
                    format!("{ended}{}{name} {count}", if name.is_empty() { "" } else { " " })
                })
                .collect();
            writeln!(f, "{total:>12}  {role}, {purpose}, {source}: {}", ends.join(", "))?;
        }
        Ok(())
    }
}
