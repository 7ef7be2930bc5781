//! Status: the whole cluster on one screen.
use crate::leading::Leading;
use crate::manager::Manager;
use crate::progress::{drains, repairs};
use cairn_manager_core::problems::{self, Problem, Severity};
use cairn_manager_core::{Scope, State};
use cairn_types::NodeId;
use cairn_wire::error::WireError;
use cairn_wire::manager::{StatusResponse, WithoutKey};
use std::collections::BTreeMap;
use std::time::Duration;

/// A new leader hears from all nodes within so long: heartbeats come each second.
const REPORT_PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks whether they have come.
const REPORT_PAUSE: Duration = Duration::from_millis(50);

/// Most of those without a key that are named.
const WITHOUT_KEY_MAX: usize = 256;

/// An even number of managers needs as many for a majority as one more would have.
fn even(voters: usize) -> Option<String> {
    (voters > 0 && voters.is_multiple_of(2)).then(|| {
        format!(
            "{voters} managers vote, and survive no more losses than {}: add one with `cairn admin manager add NUMBER@HOST:PORT`, or \
             remove one",
            voters - 1
        )
    })
}

impl Manager {
    /// What a leader that has just begun would say is wrong: it waits for the reports, and later than a while it says
    /// what is known.
    pub(crate) async fn reported(&self) -> Result<(), WireError> {
        let reported = async {
            while !self.look(|state, leading| {
                leading.soft.is_complete(state) || self.now().since(leading.since) > REPORT_PATIENCE
            })? {
                tokio::time::sleep(REPORT_PAUSE).await;
            }
            Ok::<(), WireError>(())
        };
        tokio::time::timeout(REPORT_PATIENCE, reported).await.unwrap_or(Ok(()))
    }

    /// What is wrong as far as this leader has heard, the worst first.
    fn problems(&self, state: &State, leading: &mut Leading, managers: &[NodeId]) -> Vec<Problem> {
        let now = self.now();
        leading.forget_silent_leaders(now);
        leading.soft.forget_clones(now);
        let silence = |node: NodeId| leading.liveness.silence(node, now).as_millis() as u64;
        leading.soft.silence_ms = state.servers().map(|n| (n.id, silence(n.id))).collect();
        leading.soft.mute = state.servers().map(|n| (n.id, leading.liveness.is_mute(n.id))).collect();
        let mut problems = problems::problems(state, &leading.soft, self.clock.wall());
        let silent = leading.managers.iter().filter(|(node, answers)| !**answers && managers.contains(node));
        for (node, _) in silent {
            let majority = managers.len() / 2 + 1;
            let text = format!(
                "manager {node} does not answer: the cluster goes on as long as {majority} of {} managers run; \
                 start it again, or, when its directory is lost, `cairn admin manager remove {1}`, \
                 then `cairn admin manager add {1}@HOST:PORT`",
                managers.len(),
                node.get()
            );
            problems.push(Severity::Warning, text);
        }
        if let Some(text) = even(managers.len()) {
            problems.push(Severity::Warning, text);
        }
        problems.in_order()
    }

    fn voters(&self) -> Vec<NodeId> {
        self.log.get().map(|log| log.status().core.members.voters).unwrap_or_default()
    }

    /// How many things of each severity are wrong. `None` where another manager leads, or all have not reported yet.
    pub(crate) fn problem_counts(&self) -> Option<[(Severity, usize); Severity::ALL.len()]> {
        let managers = self.voters();
        let problems = self.look(|state, leading| {
            let heard = leading.soft.is_complete(state) || self.now().since(leading.since) > REPORT_PATIENCE;
            heard.then(|| self.problems(state, leading, &managers))
        });
        let problems = problems.ok().flatten()?;
        Some(Severity::ALL.map(|severity| (severity, problems.iter().filter(|p| p.severity == severity).count())))
    }

    /// What of the status is told to keys of some volumes, before it is cut down to those: nothing of what is wrong,
    /// for which all of the cluster would be looked at.
    pub(crate) fn status_of_few(&self) -> Result<StatusResponse, WireError> {
        let managers = self.voters();
        self.look(|state, leading| StatusResponse {
            map: Some(state.map(0, Scope::All, &leading.soft)),
            leader_node: self.config.member.get(),
            term: leading.term,
            feature_level: state.level(),
            partitions: leading.soft.partitions.values().map(|load| load.report).collect(),
            managers: managers.iter().map(|node| node.get()).collect(),
            manager_members: self.manager_table(|node| leading.managers.get(&node) == Some(&true)),
            ..StatusResponse::default()
        })
    }

    /// The whole cluster. Whoever asks has waited for the [reports](Self::reported).
    pub(crate) fn status(&self) -> Result<StatusResponse, WireError> {
        let now = self.now();
        let managers = self.voters();
        let understanding = self.understanding();
        let lags = understanding.common.is_none_or(|common| common < self.raft.feature_level());
        self.look(|state, leading| {
            let problems = self.problems(state, leading, &managers);
            let repairs = repairs(state, leading, now);
            StatusResponse {
                awaited: state.waits().then(|| leading.soft.awaited.message()),
                drains: drains(state, leading),
                hibernations: self.hibernations(state),
                repairs_queued: leading.soft.repairs_queued as u32,
                feature_level: state.level(),
                feature_behind: understanding.behind.iter().filter(|_| lags).map(|node| node.get()).collect(),
                repairs,
                map: Some(state.map(0, Scope::All, &leading.soft)),
                leader_node: self.config.member.get(),
                term: leading.term,
                partitions: leading.soft.partitions.values().map(|load| load.report).collect(),
                problem_severities: problems.iter().map(|problem| problem.severity.number()).collect(),
                problems: problems.into_iter().map(|problem| problem.text).collect(),
                pgs: Some(state.pg_counts()),
                plain: without_key(leading, |(served, _)| served),
                plain_refused: without_key(leading, |(_, refused)| refused),
                managers: managers.iter().map(|node| node.get()).collect(),
                manager_members: self.manager_table(|node| leading.managers.get(&node) == Some(&true)),
            }
        })
    }
}

/// Who comes without a key, and to which nodes.
fn without_key(leading: &Leading, which: impl Fn(&(Vec<String>, Vec<String>)) -> &Vec<String>) -> Vec<WithoutKey> {
    let mut all: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (node, plain) in &leading.soft.plain {
        which(plain).iter().for_each(|who| all.entry(who.as_str()).or_default().push(node.get()));
    }
    let named = all.into_iter().take(WITHOUT_KEY_MAX);
    named.map(|(who, nodes)| WithoutKey { who: who.to_owned(), nodes }).collect()
}

#[cfg(test)]
mod tests {
    use super::even;

    /// A cluster that a lost manager left with two would be called healthy, and stand with the next loss.
    #[test]
    fn an_even_number_of_managers_is_named() {
        assert!([1, 3, 5, 0].into_iter().all(|voters| even(voters).is_none()));
        for (voters, like) in [(2, 1), (4, 3)] {
            let text = even(voters).expect("even");
            assert!(
                text.starts_with(&format!("{voters} managers vote, and survive no more losses than {like}: add one"))
            );
        }
    }
}
