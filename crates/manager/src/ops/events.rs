//! ListEvents: what happened, from the replicated list. ClearGray: a disk is good again, says an operator.
use crate::manager::Manager;
use cairn_manager_core::State;
use cairn_manager_core::command::{Command, SetGray};
use cairn_manager_core::events::{EVENTS_MAX, Kind};
use cairn_types::ErrorCode;
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::manager::{ClearGrayRequest, Event, EventKind, ListEventsRequest, ListEventsResponse};

impl Manager {
    pub(crate) fn list_events(&self, request: &ListEventsRequest) -> Result<ListEventsResponse, WireError> {
        self.look_in_cluster(|state, _| list(state, request))
    }

    pub(crate) async fn clear_gray(&self, request: ClearGrayRequest) -> Result<Empty, WireError> {
        self.permit()?;
        let command = SetGray { disk: request.disk, gray: false, why: String::new() };
        self.execute(Command::SetGray(command)).await?;
        tracing::warn!(disk = request.disk, "an operator says that a gray disk is good");
        Ok(Empty {})
    }
}

fn list(state: &State, request: &ListEventsRequest) -> Result<ListEventsResponse, WireError> {
    let code = |name: &String| {
        let kind = Kind::ALL.iter().find(|kind| kind.name() == name);
        kind.map(|kind| *kind as u32).ok_or_else(|| {
            let all: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            let shown: String = name.chars().take(64).collect();
            WireError::new(
                ErrorCode::InvalidArgument,
                format!("{shown:?} is no kind of event; there are {}", all.join(", ")),
            )
        })
    };
    let kinds: Vec<u32> = request.kinds.iter().map(code).collect::<Result<_, _>>()?;
    let last = state.events().next_back().map_or(0, |event| event.number);
    // The list began anew, as after the map was rebuilt: everything is news.
    let after = if request.after > last { 0 } else { request.after };
    let wanted = |event: &&Event| {
        event.number > after
            && event.time_ns >= request.since_ns
            && (request.node == 0 || event.node == request.node)
            && (kinds.is_empty() || kinds.contains(&event.kind))
    };
    let max = if request.max == 0 { EVENTS_MAX } else { request.max as usize };
    let mut events: Vec<Event> = state.events().rev().filter(wanted).take(max).cloned().collect();
    events.reverse();
    let told = Kind::ALL.iter().filter(|kind| events.iter().any(|event| event.kind == **kind as u32));
    let kind = |kind: &Kind| EventKind { code: *kind as u32, name: kind.name().into(), meaning: kind.meaning().into() };
    Ok(ListEventsResponse { kinds: told.map(kind).collect(), events, last })
}
