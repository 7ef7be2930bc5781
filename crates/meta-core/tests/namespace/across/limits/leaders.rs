//! What the leaders of a volume's partitions tell each other about its limit.
use super::{PARTITIONS, Packet, World, amounts, told};
use cairn_meta_core::{Amounts, Asker, Lender, recall};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;

impl World {
    pub fn lend(&mut self, bound: VolumeBound) -> VolumeBound {
        self.home().apply::<Empty>(Opcode::Lend, &Lend { bounds: vec![bound] }).expect("lent");
        let lent = self.home().namespace.lent_to(bound.partition);
        let bound = told(bound.partition, lent.number, lent.target);
        self.packets.push(Packet::Tell(bound));
        bound
    }

    /// The home's leader hears what a partition needs.
    pub fn asked(&mut self, from: u32, number: u64, used: Amounts, least: Amounts) {
        let home = &self.home().namespace;
        let asker = Asker { least, wanted: least, ..home.asker(from, used, Amounts::NONE) };
        if let Some(bound) = asker.bound(PARTITIONS.into()) {
            let number = home.next_number(from, number);
            self.lend(told(from, number, bound));
            return self.note("lent");
        }
        self.give_back(from, asker.lacks());
    }

    pub fn ask_at_home(&mut self, least: Amounts) {
        let asker = Asker { least, ..self.home().namespace.asker(1, Amounts::NONE, Amounts::NONE) };
        self.give_back(1, asker.lacks());
    }

    /// By what was heard, however old.
    fn give_back(&mut self, but: u32, lacking: Amounts) {
        let mut lenders = Vec::new();
        for (partition, (_, used)) in self.heard.clone().into_iter().filter(|(partition, _)| *partition != but) {
            let ceiling = self.home().namespace.lent_to(partition).ceiling;
            lenders.push(Lender { partition, used, ceiling });
        }
        for (to, target) in recall(&lenders, lacking) {
            let heard = self.heard[&to].0;
            let number = self.home().namespace.next_number(to, heard);
            self.lend(told(to, number, target));
            self.note("recalled");
        }
    }

    pub fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::Ask(from, number, used, least) => self.asked(from, number, used, least),
            Packet::Tell(bound) => {
                let part = self.part(bound.partition);
                part.apply::<Empty>(Opcode::SetBound, &SetBound { bound: Some(bound) }).expect("told");
                self.answer(bound.partition);
            }
            Packet::Has(bound, used) => {
                let lent = self.home().namespace.lent_to(bound.partition);
                self.heard.insert(bound.partition, (bound.number, used));
                if lent.number == bound.number {
                    let has = amounts(bound).max(used);
                    let note = NoteLent { bounds: vec![told(bound.partition, bound.number, has)] };
                    self.home().apply::<Empty>(Opcode::NoteLent, &note).expect("noted");
                }
            }
        }
        self.check(Amounts::NONE);
    }

    pub fn answer(&mut self, at: u32) {
        let namespace = &self.part(at).namespace;
        let used = namespace.volume_use();
        let bound = namespace.bound().map_or(told(at, 0, Amounts::ANY), |bound| told(at, bound.number, bound.max));
        self.packets.push(Packet::Has(bound, used));
    }
}
