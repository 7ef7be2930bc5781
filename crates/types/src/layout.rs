//! Layout of a file: scheme, striping and a later scheme, such as `r3`, `r2x128/64k`, `rs-6-3/64k`, `r3>rs-10-4@2h`.
//!
//! Inherited from the directory and fixed at creation. Packed into a u64 on the wire and on disk:
//! bits 0–7 scheme code, 8–23 stripe width (0 = not striped over chunks), 24–31 log2 of the stripe unit (0 = none),
//! 32–39 code of the scheme that it is encoded to later (0 = none), 40–41 the [`Stage`] of a file with a later scheme,
//! 42–55 after which time it is encoded ([`StageAfter`], 0 = 24 h), 56–63 zero.
//!
//! Invariant: [`scheme`](Layout::scheme) and [`stripe`](Layout::stripe) tell how bytes are written *now*: those of a
//! file that is encoded are of the later scheme. So whoever writes or counts by a layout does it right in every stage.
use crate::scheme::Scheme;
use crate::stage::{Stage, StageAfter};
use crate::stripe::Stripe;
use crate::units::ByteCount;
use std::fmt;
use std::str::FromStr;

/// Smallest stripe unit.
pub const STRIPE_UNIT_MIN: u64 = 4 << 10;
/// Largest stripe unit.
pub const STRIPE_UNIT_MAX: u64 = 1 << 20;
/// Stripe unit where none is given.
pub const STRIPE_UNIT_DEFAULT: u64 = 64 << 10;
/// Most chunks that a replicated stripe set may have.
pub const STRIPE_WIDTH_MAX: u16 = 512;

const STAGE_SHIFT: u32 = 40;
const AFTER_SHIFT: u32 = 42;

/// A parsed layout. Fields are private so that every value is a valid one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    scheme: Scheme,
    width: u16,
    unit_log2: u8,
    staged: Option<Scheme>,
    stage: Stage,
    after: StageAfter,
}

/// A text that is no layout; prints what is allowed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is no layout ({why}); examples: r3 (three copies), r2x128/64k (two copies, striped over 128 chunks), \
     rs-6-3/64k (Reed–Solomon), r3>rs-6-3 (copies that are encoded a day after the last change; r3>rs-6-3@2h: two hours)"
)]
pub struct LayoutError {
    text: String,
    why: String,
}

impl Layout {
    /// The bits of the stage.
    pub const STAGE_BITS: u64 = 3 << STAGE_SHIFT;

    /// Plain copies.
    pub const fn replicated(copies: u8) -> Layout {
        assert!(copies >= 1 && copies <= 5);
        let scheme = Scheme::Replicated(copies);
        Layout { scheme, width: 0, unit_log2: 0, staged: None, stage: Stage::Copies, after: StageAfter::DEFAULT }
    }
    /// Scheme of the chunks that are written now.
    pub fn scheme(self) -> Scheme {
        match self.staged {
            Some(later) if self.stage.is_encoded() => later,
            _ => self.scheme,
        }
    }
    /// Chunks in a stripe set, if the file is striped over replicated chunks.
    pub fn stripe_width(self) -> Option<u16> {
        (self.width > 0).then_some(self.width)
    }
    /// Bytes of a stripe unit, if striped.
    pub fn stripe_unit(self) -> Option<u64> {
        match self.unit_log2 {
            0 if self.stage.is_encoded() => Some(STRIPE_UNIT_DEFAULT),
            0 => None,
            log2 => Some(1 << log2),
        }
    }
    /// How whole rows lie on columns: the k data shards, or the chunks of a stripe set.
    pub fn stripe(self) -> Option<Stripe> {
        let columns = match self.scheme() {
            Scheme::Erasure { k, .. } => u16::from(k),
            Scheme::Replicated(_) => self.width,
        };
        Stripe::new(columns, self.stripe_unit()?)
    }
    /// Scheme that the file is encoded to later.
    pub fn staged(self) -> Option<Scheme> {
        self.staged
    }
    /// How far a file is on its way to the later scheme.
    pub fn stage(self) -> Stage {
        self.stage
    }
    /// Time without a change after which a file is encoded.
    pub fn stage_after(self) -> StageAfter {
        self.after
    }
    /// The same in another stage; without a later scheme there is none.
    pub fn in_stage(self, stage: Stage) -> Layout {
        if self.staged.is_some() { Layout { stage, ..self } } else { self }
    }
    /// What directories have and new files get.
    pub fn fresh(self) -> Layout {
        self.in_stage(Stage::Copies)
    }
    /// Whether bytes of a file of `self` may stay where they are when it gets the layout `other`, and in which stage it
    /// is then: both begin with the same copies, and what is encoded already has the same later scheme.
    pub fn relabelled(self, other: Layout) -> Option<Layout> {
        let copies = |layout: Layout| layout.width == 0 && layout.scheme.is_replicated();
        let same = copies(self) && copies(other) && self.scheme == other.scheme;
        if !same || self.stage.is_encoded() && self.staged != other.staged {
            return None;
        }
        // Whether it is worth encoding depends on the scheme.
        let kept = self.stage == Stage::Kept && self.staged != other.staged;
        Some(other.in_stage(if kept { Stage::Copies } else { self.stage }))
    }
    /// The feature level from which on its schemes are known ([`crate::feature`]).
    pub fn schemes_since_level(self) -> u32 {
        self.scheme.since_level().max(self.staged.map_or(0, Scheme::since_level))
    }
    /// True for `r1` … `r5` without striping or staging.
    pub fn is_plain_replicated(self) -> bool {
        self.scheme.is_replicated() && self.width == 0 && self.staged.is_none()
    }
    pub fn to_bits(self) -> u64 {
        u64::from(self.scheme.code())
            | u64::from(self.width) << 8
            | u64::from(self.unit_log2) << 24
            | u64::from(self.staged.map_or(0, Scheme::code)) << 32
            | (self.stage as u64) << STAGE_SHIFT
            | u64::from(self.after.code()) << AFTER_SHIFT
    }
    /// Decodes what `to_bits` gave; `None` for anything else.
    pub fn from_bits(bits: u64) -> Option<Layout> {
        if bits >> 56 != 0 {
            return None;
        }
        let scheme = Scheme::from_code(bits as u8)?;
        let staged = match (bits >> 32) as u8 {
            0 => None,
            code => Some(Scheme::from_code(code)?),
        };
        let stage = Stage::from_code((bits >> STAGE_SHIFT) as u8 & 3);
        let after = StageAfter::from_code((bits >> AFTER_SHIFT) as u16 & 0x3fff)?;
        let layout = Layout { scheme, width: (bits >> 8) as u16, unit_log2: (bits >> 24) as u8, staged, stage, after };
        layout.check().ok().map(|()| layout)
    }

    fn check(self) -> Result<(), String> {
        let striped = self.width > 0 || !self.scheme.is_replicated();
        if striped != (self.unit_log2 > 0) {
            return Err("a stripe unit goes with striping, and only with it".into());
        }
        if self.unit_log2 > 0 && !(12..=20).contains(&self.unit_log2) {
            return Err("the stripe unit is a power of two from 4k to 1m".into());
        }
        if self.width > STRIPE_WIDTH_MAX || self.width == 1 {
            return Err(format!("the stripe width is 2 to {STRIPE_WIDTH_MAX} chunks"));
        }
        if self.width > 0 && !self.scheme.is_replicated() {
            return Err("an erasure scheme has its own stripe width".into());
        }
        if let Some(staged) = self.staged
            && (!self.scheme.is_replicated() || self.width > 0 || staged.is_replicated())
        {
            return Err("staged encoding goes from plain copies to an erasure scheme".into());
        }
        if self.staged.is_none() && (self.stage != Stage::Copies || self.after != StageAfter::DEFAULT) {
            return Err("a time goes with a later scheme, and only with it".into());
        }
        Ok(())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scheme)?;
        if self.width > 0 {
            write!(f, "x{}", self.width)?;
        }
        // That of the later scheme is not written: it is the usual one.
        if let Some(unit) = self.stripe_unit().filter(|_| self.unit_log2 > 0) {
            if unit >= 1 << 20 {
                write!(f, "/{}m", unit >> 20)?;
            } else {
                write!(f, "/{}k", unit >> 10)?;
            }
        }
        if let Some(staged) = self.staged {
            write!(f, ">{staged}")?;
            if self.after != StageAfter::DEFAULT {
                write!(f, "@{}", self.after)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        parse(text).map_err(|why| LayoutError { text: text.into(), why })
    }
}

/// The usual unit may be written, and is not kept: the bits of a unit are those of what is written now.
fn later_scheme(now: &str, later: &str) -> Result<Scheme, String> {
    let (scheme, unit) = match later.split_once('/') {
        Some((scheme, unit)) => (scheme.parse::<Scheme>()?, unit.parse::<ByteCount>()?.0),
        None => return later.parse(),
    };
    match unit {
        STRIPE_UNIT_DEFAULT => Ok(scheme),
        _ => Err(format!("what is encoded later has units of {}k: write {now}>{scheme}", STRIPE_UNIT_DEFAULT >> 10)),
    }
}

fn parse(text: &str) -> Result<Layout, String> {
    let (text, after) = match text.split_once('@') {
        Some((text, after)) => (text, after.parse::<StageAfter>()?),
        None => (text, StageAfter::DEFAULT),
    };
    let (now, staged) = match text.split_once('>') {
        Some((now, later)) => (now, Some(later_scheme(now, later)?)),
        None => (text, None),
    };
    let (now, unit) = match now.split_once('/') {
        Some((now, unit)) => (now, Some(unit.parse::<ByteCount>()?.0)),
        None => (now, None),
    };
    let (scheme, width) = match now.split_once('x') {
        Some((scheme, width)) => {
            let width: u16 = width.parse().map_err(|_| format!("{width:?} is no stripe width"))?;
            if width == 0 {
                return Err(format!("the stripe width is 2 to {STRIPE_WIDTH_MAX} chunks"));
            }
            (scheme.parse::<Scheme>()?, width)
        }
        None => (now.parse::<Scheme>()?, 0),
    };
    let striped = width > 0 || !scheme.is_replicated();
    let unit = unit.or(striped.then_some(STRIPE_UNIT_DEFAULT)).unwrap_or(0);
    if unit != 0 && !(unit.is_power_of_two() && (STRIPE_UNIT_MIN..=STRIPE_UNIT_MAX).contains(&unit)) {
        return Err("the stripe unit is a power of two from 4k to 1m".into());
    }
    let unit_log2 = if unit == 0 { 0 } else { unit.trailing_zeros() as u8 };
    let layout = Layout { scheme, width, unit_log2, staged, stage: Stage::Copies, after };
    layout.check().map(|()| layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_bits_round_trip() {
        for text in
            ["r1", "r3", "r5", "r2x128/64k", "rs-6-3/64k", "rs-10-4/1m", "r3>rs-10-4", "r1>rs-3-2@2s", "r5>rs-6-3@30d"]
        {
            let layout: Layout = text.parse().expect(text);
            assert_eq!(layout.to_string(), text);
            assert_eq!(Layout::from_bits(layout.to_bits()), Some(layout));
        }
        assert_eq!("rs-6-3".parse::<Layout>().map(|l| l.to_string()), Ok("rs-6-3/64k".into()));
    }

    #[test]
    fn golden_bits() {
        assert_eq!(Layout::replicated(3).to_bits(), 3);
        assert_eq!("r2x128/64k".parse::<Layout>().map(Layout::to_bits), Ok(0x1000_8002));
        assert_eq!("r3>rs-10-4".parse::<Layout>().map(Layout::to_bits), Ok(0x13_0000_0003));
        assert_eq!("r3>rs-10-4@2h".parse::<Layout>().map(Layout::to_bits), Ok(0x0080_0813_0000_0003));
        let encoded = "r3>rs-10-4".parse::<Layout>().map(|layout| layout.in_stage(Stage::Encoded).to_bits());
        assert_eq!(encoded, Ok(0x0113_0000_0003));
    }

    /// An encoded file would be written, read ahead or counted as copies, or one that waits as rows.
    #[test]
    fn a_staged_layout_is_what_its_stage_says() {
        let staged: Layout = "r3>rs-6-3@2h".parse().expect("a layout");
        for (stage, like) in
            [(Stage::Copies, "r3"), (Stage::Kept, "r3"), (Stage::Encoded, "rs-6-3"), (Stage::Changed, "rs-6-3")]
        {
            let (now, like) = (staged.in_stage(stage), like.parse::<Layout>().expect("a layout"));
            assert_eq!((now.scheme(), now.stripe(), now.stage()), (like.scheme(), like.stripe(), stage));
            assert_eq!(now.to_string(), "r3>rs-6-3@2h");
            assert_eq!((Layout::from_bits(now.to_bits()), now.fresh()), (Some(now), staged));
            assert_eq!(like.in_stage(stage), like, "nothing else has stages");
        }
    }

    /// A conversion would copy what is right where it is, or leave bytes of another scheme.
    #[test]
    fn only_what_is_right_where_it_is_may_stay_there() {
        let of = |text: &str| text.parse::<Layout>().expect("a layout");
        let staged = of("r3>rs-6-3");
        assert_eq!(of("r3").relabelled(staged), Some(staged));
        assert_eq!(staged.relabelled(of("r3")), Some(of("r3")));
        let encoded = staged.in_stage(Stage::Encoded);
        assert_eq!(encoded.relabelled(of("r3>rs-6-3@1h")), Some(of("r3>rs-6-3@1h").in_stage(Stage::Encoded)));
        assert_eq!(staged.in_stage(Stage::Kept).relabelled(of("r3>rs-3-2")), Some(of("r3>rs-3-2")));
        for (from, to) in
            [(encoded, "r3"), (encoded, "r3>rs-3-2"), (staged, "r2"), (staged, "rs-6-3"), (of("r2x8"), "r2>rs-6-3")]
        {
            assert_eq!(from.relabelled(of(to)), None, "{from} {to}");
        }
    }

    #[test]
    fn wrong_layouts_say_why() {
        for text in [
            "",
            "r0",
            "r6",
            "r3/64k",
            "r2x1/64k",
            "r2x0",
            "rs-6-3/3k",
            "rs-6-3/2m",
            "rs-7-7",
            "r3>r2",
            "rs-6-3>r3",
            "r3@2h",
            "r3>rs-6-3@0s",
            "r3>rs-6-3@",
            "r3>rs-6-3@5000d",
        ] {
            let error = text.parse::<Layout>().expect_err(text);
            assert!(error.to_string().contains("examples: r3"));
        }
        // Each part is right, so it has to be said what to write.
        let error = "r3>rs-6-3/256k@2h".parse::<Layout>().expect_err("no unit").to_string();
        assert!(error.contains("units of 64k: write r3>rs-6-3"), "{error}");
        assert_eq!("r3>rs-6-3/64k@2h".parse::<Layout>(), "r3>rs-6-3@2h".parse());
        assert_eq!(Layout::from_bits(0), None);
        assert_eq!(Layout::from_bits(u64::MAX), None);
        // A stage and a time without a later scheme; a time that is written otherwise.
        for bits in [0x0100_0000_0003, 0x0080_0800_0000_0003, 0x13_0000_0003 | 120 << 42] {
            assert_eq!(Layout::from_bits(bits), None, "{bits:#x}");
        }
    }
}
