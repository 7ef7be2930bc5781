//! [`Event`]: what happened, as the managers keep it.
use crate::connect::Client;
use crate::error::Result;
use cairn_wire::Opcode;
use cairn_wire::manager::{ListEventsRequest, ListEventsResponse};

/// Which events are asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EventFilter {
    /// With higher numbers.
    pub after: u64,
    /// Not before that time, since 1970.
    pub since_ns: u64,
    /// Of this node; 0: of all nodes and of none.
    pub node: u32,
    /// By name; none: all.
    pub kinds: Vec<String>,
    /// The newest so many; 0: as many as an answer may have.
    pub max: u32,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub number: u64,
    pub time_ns: u64,
    /// Name of its kind, and what that means.
    pub kind: String,
    pub meaning: String,
    /// What it is about; 0: none.
    pub node: u32,
    pub disk: u32,
    pub pg: u32,
    pub text: String,
}

/// Events, the oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// Number of the last one there is.
    pub last: u64,
}

impl EventPage {
    fn of_wire(found: ListEventsResponse) -> Self {
        let ListEventsResponse { events, last, kinds } = found;
        let events = events.into_iter().map(|event| {
            let kind = kinds.iter().find(|kind| kind.code == event.kind);
            let (kind, meaning) =
                kind.map_or(("unknown", "of a later version"), |kind| (kind.name.as_str(), kind.meaning.as_str()));
            Event {
                number: event.number,
                time_ns: event.time_ns,
                kind: kind.to_owned(),
                meaning: meaning.to_owned(),
                node: event.node,
                disk: event.disk,
                pg: event.pg,
                text: event.text,
            }
        });
        Self { events: events.collect(), last }
    }
}

impl Client {
    pub async fn events(&self, filter: &EventFilter) -> Result<EventPage> {
        let EventFilter { after, since_ns, node, kinds, max } = filter.clone();
        let request = ListEventsRequest { after, since_ns, node, kinds, max };
        Ok(EventPage::of_wire(self.manager("asking for events", Opcode::ListEvents, &request).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::manager;

    /// An event would be told as another kind than it is.
    #[test]
    fn events_have_the_names_of_their_kinds() {
        let event = |kind| manager::Event { number: 1, kind, ..Default::default() };
        let kind = |code, name: &str| manager::EventKind { code, name: name.into(), meaning: "m".into() };
        let found = ListEventsResponse { events: vec![event(2), event(9)], last: 7, kinds: vec![kind(2, "node-down")] };
        let page = EventPage::of_wire(found);
        let told: Vec<_> = page.events.iter().map(|one| (one.kind.as_str(), one.meaning.as_str())).collect();
        assert_eq!((told, page.last), (vec![("node-down", "m"), ("unknown", "of a later version")], 7));
    }
}
