//! ReportMember: somebody saw a member of a placement group fail or stall.
//!
//! The member is probed at once. Nobody listens at its node's address: the node is marked down, with all its members,
//! in one entry. No answer, or the disk says that it does not serve: the member leaves this group, and the node is
//! probed again with more patience and marked down if it stays silent. It answers: nothing changes, unless several
//! writers report it again and again ([`cairn_manager_core::slowness`]). It says that it is starting: nothing, unless
//! its node has sent no heartbeat for a while. A member without which the group could not be read never leaves. The
//! answer waits a moment until the other members have the new epoch, so that the reporter can go on with them.
use crate::manager::Manager;
use cairn_manager_core::command::{Command, MemberAt, NodeAt, NodesDown};
use cairn_manager_core::liveness::ProbeOutcome;
use cairn_manager_core::{Key, Pg, State};
use cairn_types::{DiskId, Epoch, ErrorCode, MemberState, NodeId, PgId};
use cairn_wire::error::WireError;
use cairn_wire::manager::{ReportMemberRequest, ReportMemberResponse};
use std::time::Duration;

/// How long an answer waits for the other members to take the new epoch.
pub(crate) const TAKEOVER_PATIENCE: Duration = Duration::from_millis(500);
/// Silence after which a node that fails two probes in a row is marked down without waiting for the whole timeout.
const SUSPECT_SILENCE: Duration = Duration::from_millis(2500);

/// A node that was heard within this time and says that it is starting keeps its members: it opens its disks.
const STARTING_PATIENCE: Duration = Duration::from_secs(8);

/// What is needed to judge a report.
struct Case {
    pg: PgId,
    disk: DiskId,
    epoch: Epoch,
    node: NodeId,
    incarnation: u64,
    address: String,
    probe_deadline: Duration,
}

impl Manager {
    /// `reporter` tells reporters apart; `None`: whoever asks has the member probed, and no more.
    pub(crate) async fn report_member(
        &self,
        request: ReportMemberRequest,
        reporter: Option<u64>,
    ) -> Result<ReportMemberResponse, WireError> {
        self.metrics.reports.add(1);
        let case = match self.look_in_cluster(|state, _| open_case(state, &request))? {
            Ok(case) => case,
            Err(settled) => return Ok(settled),
        };
        let why: String = request.why.chars().filter(|c| !c.is_control()).take(200).collect();
        let outcome = self.probe_member(&case.address, case.pg, case.disk, case.probe_deadline).await;
        let remove = match leaves(outcome, self.silence(case.node)?) {
            Some(remove) => remove,
            None => reporter.map_or(Ok(false), |reporter| self.is_slow(&case, reporter))?,
        };
        tracing::info!(pg = %case.pg, disk = %case.disk, node = %case.node, ?outcome, remove, %why, "a member was reported");
        if !remove {
            self.metrics.reports_false.add(1);
            return self.report_answer(&case);
        }
        self.metrics.reports_true.add(1);
        if outcome == ProbeOutcome::Refused {
            self.node_is_gone(case.node, case.incarnation).await?;
        } else {
            let at = MemberAt { pg: case.pg.get(), disk: case.disk.get(), epoch: case.epoch.get() };
            self.execute(Command::MemberFailed(at)).await?;
            self.look(|state, leading| {
                let now = state.pg(case.pg).and_then(|pg| pg.state_of(case.disk));
                if matches!(now, Some(MemberState::Offline | MemberState::Waiting)) {
                    leading.removed(case.pg, case.disk, case.epoch, self.now());
                }
            })?;
            if outcome == ProbeOutcome::Silent {
                self.suspect(&case);
            }
        }
        self.push(&[case.pg]);
        self.pushed(&[case.pg], TAKEOVER_PATIENCE).await;
        self.report_answer(&case)
    }

    fn silence(&self, node: NodeId) -> Result<Duration, WireError> {
        self.look(|_, leading| leading.liveness.silence(node, self.now()))
    }

    fn is_slow(&self, case: &Case, reporter: u64) -> Result<bool, WireError> {
        let slow = self.look(|state, leading| {
            let window = state.config().duration(Key::SlowWindow);
            let limit = state.config().number(Key::SlowReports);
            leading.slowness.report(case.disk, reporter, self.now(), window, limit)
        })?;
        if slow {
            self.metrics.slow_members.add(1);
            tracing::warn!(pg = %case.pg, disk = %case.disk, node = %case.node,
                "a member answers probes but several writers found it slow: it leaves this group for a time");
        }
        Ok(slow)
    }

    fn report_answer(&self, case: &Case) -> Result<ReportMemberResponse, WireError> {
        self.look(|state, _| match state.pg(case.pg) {
            Some(pg) => settled(state, pg, case.disk),
            None => ReportMemberResponse::default(),
        })
    }

    /// Nobody listens at the node's address: its process is gone.
    pub(crate) async fn node_is_gone(&self, node: NodeId, incarnation: u64) -> Result<(), WireError> {
        // Many report it in the same moment.
        if self.look(|_, leading| leading.gone.insert(node, incarnation) != Some(incarnation))? {
            self.metrics.nodes_marked_down.add(1);
            tracing::warn!(%node, "nobody listens at this node's address: it is marked down");
        }
        let nodes = vec![NodeAt { node: node.get(), incarnation }];
        self.execute(Command::NodesDown(NodesDown { nodes })).await.map(drop)
    }

    /// Looks a second time, with more patience, at the node of a member that did not answer.
    fn suspect(&self, case: &Case) {
        let Some(me) = self.arc() else { return };
        let (node, incarnation, address) = (case.node, case.incarnation, case.address.clone());
        self.spawn(async move {
            let deadline = me.look(|state, _| state.config().duration(Key::ProbeDeadline));
            let Ok(deadline) = deadline else { return };
            let outcome = me.probe_node(&address, deadline).await;
            let silence = me.silence(node).unwrap_or_default();
            let gone = match outcome {
                ProbeOutcome::Alive | ProbeOutcome::Starting => false,
                ProbeOutcome::Silent => silence >= SUSPECT_SILENCE,
                ProbeOutcome::Refused => true,
            };
            if gone && let Err(error) = me.node_is_gone(node, incarnation).await {
                tracing::info!(%node, %error, "a node could not be marked down; its heartbeats are watched on");
            }
        });
    }
}

/// A case to look into, or the answer if there is nothing to look into.
fn open_case(state: &State, request: &ReportMemberRequest) -> Result<Result<Case, ReportMemberResponse>, WireError> {
    let (id, disk) = (PgId(request.pg), DiskId(request.disk));
    let unknown = || WireError::new(ErrorCode::UnknownPg, format!("there is no {id}; refresh the cluster map"));
    let pg = state.pg(id).filter(|pg| !pg.retired).ok_or_else(unknown)?;
    let Some(member) = pg.state_of(disk) else {
        return Err(WireError::new(ErrorCode::BadRequest, format!("{disk} is no member of {id}")));
    };
    // Seen under an older epoch: the reporter first has to see the present one.
    if pg.epoch > Epoch(request.epoch) || !member.receives_writes() {
        return Ok(Err(settled(state, pg, disk)));
    }
    let node = state.disk(disk).and_then(|disk| state.node(disk.node));
    let node = node.ok_or_else(|| WireError::new(ErrorCode::Internal, format!("{disk} has no node")))?;
    Ok(Ok(Case {
        pg: id,
        disk,
        epoch: pg.epoch,
        node: node.id,
        incarnation: node.incarnation.get(),
        address: node.address.clone(),
        probe_deadline: state.config().duration(Key::ReportProbeDeadline),
    }))
}

fn settled(state: &State, pg: &Pg, disk: DiskId) -> ReportMemberResponse {
    let removed = pg.state_of(disk).is_none_or(|member| !member.receives_writes());
    ReportMemberResponse { state: Some(state.pg_state(pg)), removed }
}

/// Whether a reported member leaves by what its probe came to; `None`: it answers, others may have found it slow.
/// `silence`: time since its node's last heartbeat.
fn leaves(outcome: ProbeOutcome, silence: Duration) -> Option<bool> {
    match outcome {
        ProbeOutcome::Alive => None,
        ProbeOutcome::Starting => Some(silence > STARTING_PATIENCE),
        ProbeOutcome::Silent | ProbeOutcome::Refused => Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that restarts would lose all its members at once, or one that never gets ready keep them for ever.
    #[test]
    fn a_starting_member_has_eight_seconds() {
        let seconds = Duration::from_secs;
        assert_eq!(leaves(ProbeOutcome::Starting, seconds(0)), Some(false));
        assert_eq!(leaves(ProbeOutcome::Starting, seconds(8)), Some(false));
        assert_eq!(leaves(ProbeOutcome::Starting, seconds(8) + Duration::from_millis(1)), Some(true));
        // What does not answer leaves at once, whatever its node said a moment ago; what answers is looked at further.
        for silence in [seconds(0), seconds(60)] {
            assert_eq!(leaves(ProbeOutcome::Silent, silence), Some(true));
            assert_eq!(leaves(ProbeOutcome::Refused, silence), Some(true));
            assert_eq!(leaves(ProbeOutcome::Alive, silence), None);
        }
    }
}
