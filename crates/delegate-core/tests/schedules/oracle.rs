//! The model, and what was done to it: what a holder loses is taken out again.
use cairn_model::{Model, Operation, Reply, Request};

enum Event {
    Operation {
        request: Box<Request>,
        operation: Box<Operation>,
        next_inode: u64,
        /// Delegation, and number of the item.
        item: Option<(u64, u64)>,
    },
    SessionEnd(u64),
}

pub struct Oracle {
    pub model: Model,
    history: Vec<Event>,
    /// The next number that nobody was given.
    next_inode: u64,
}

fn empty() -> Model {
    Model::new(0o777, 3, 1_000)
}

fn happen(model: &mut Model, event: &Event) -> Option<Reply> {
    match event {
        Event::Operation { request, operation, next_inode, .. } => {
            model.next_inode = *next_inode;
            Some(model.apply(request, operation))
        }
        Event::SessionEnd(session) => {
            model.end_session(*session);
            None
        }
    }
}

impl Oracle {
    pub fn new() -> Oracle {
        Oracle { model: empty(), history: Vec::new(), next_inode: 2 }
    }

    /// The model's answer, where a new inode has this number.
    pub fn apply(
        &mut self,
        request: Request,
        operation: Operation,
        next_inode: u64,
        item: Option<(u64, u64)>,
    ) -> Reply {
        let (request, operation) = (Box::new(request), Box::new(operation));
        let event = Event::Operation { request, operation, next_inode, item };
        let reply = happen(&mut self.model, &event);
        self.history.push(event);
        self.next_inode = self.next_inode.max(self.model.next_inode);
        self.model.next_inode = self.next_inode;
        reply.expect("it is an operation")
    }

    pub fn end_session(&mut self, session: u64) {
        self.model.end_session(session);
        self.history.push(Event::SessionEnd(session));
    }

    /// Takes out items of a delegation from one on. Answers how many there were.
    pub fn forget(&mut self, number: u64, from: u64) -> usize {
        let is_lost = |event: &Event| matches!(event, Event::Operation { item: Some((of, at)), .. } if *of == number && *at >= from);
        let count = self.history.len();
        self.history.retain(|event| !is_lost(event));
        let lost = count - self.history.len();
        if lost > 0 {
            self.model = empty();
            for event in &self.history {
                happen(&mut self.model, event);
            }
            self.model.next_inode = self.next_inode;
        }
        lost
    }
}
