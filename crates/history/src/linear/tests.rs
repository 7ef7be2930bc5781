//! The checker accepts what can have been, and refuses what cannot: by hand, and against trying all orders.
use super::*;
use cairn_sim::SimRng;

/// One number that is written, read, and changed if it is what somebody thinks.
struct Register;

#[derive(Clone, Copy, Debug)]
enum Do {
    Write(u8),
    Read,
    Swap(u8, u8),
}

/// What is read, or whether something was swapped.
type Told = u8;

impl Model for Register {
    type State = u8;
    type Input = Do;
    type Output = Told;
    fn step(&self, state: &u8, input: &Do, output: Option<&Told>) -> Option<u8> {
        let (told, after) = match *input {
            Do::Write(value) => (0, value),
            Do::Read => (*state, *state),
            Do::Swap(from, to) if from == *state => (1, to),
            Do::Swap(..) => (0, *state),
        };
        output.is_none_or(|output| *output == told).then_some(after)
    }
}

type Line = Call<Do, Told>;

fn call(input: Do, begin: u64, end: u64, output: Told) -> Line {
    Call { client: 0, input, begin, end: Some((end, output)) }
}

fn unknown(input: Do, begin: u64) -> Line {
    Call { client: 0, input, begin, end: None }
}

fn accepted(history: &[Line]) -> bool {
    match check(&Register, 0, history, 1 << 20) {
        Verdict::Linearizable => true,
        Verdict::Refused { .. } => false,
        Verdict::Undecided => panic!("undecided"),
    }
}

/// A checker that refuses nothing, or everything, would prove nothing.
#[test]
fn what_can_have_been_is_told_from_what_cannot() {
    use Do::{Read, Swap, Write};
    let cases: &[(&str, bool, &[Line])] = &[
        ("nothing", true, &[]),
        ("read what is there", true, &[call(Read, 1, 2, 0)]),
        ("read what nobody wrote", false, &[call(Read, 1, 2, 7)]),
        ("read after write", true, &[call(Write(1), 1, 2, 0), call(Read, 3, 4, 1)]),
        ("a stale read", false, &[call(Write(1), 1, 2, 0), call(Read, 3, 4, 0)]),
        ("a read beside a write gives either", true, &[call(Write(1), 1, 4, 0), call(Read, 2, 3, 0)]),
        ("a read beside a write gives either", true, &[call(Write(1), 1, 4, 0), call(Read, 2, 3, 1)]),
        (
            "new, then old, beside one write",
            false,
            &[call(Write(1), 1, 9, 0), call(Read, 2, 3, 1), call(Read, 4, 5, 0)],
        ),
        (
            "two readers at one time in either order",
            true,
            &[call(Write(1), 1, 9, 0), call(Read, 2, 5, 1), call(Read, 3, 4, 0)],
        ),
        ("an unknown write may have happened", true, &[unknown(Write(1), 1), call(Read, 2, 3, 1)]),
        ("or never", true, &[unknown(Write(1), 1), call(Read, 2, 3, 0)]),
        ("or late", true, &[unknown(Write(1), 1), call(Read, 2, 3, 0), call(Write(2), 4, 5, 0), call(Read, 6, 7, 1)]),
        (
            "but not twice",
            false,
            &[
                unknown(Write(1), 1),
                call(Read, 2, 3, 1),
                call(Write(2), 4, 5, 0),
                call(Read, 6, 7, 2),
                call(Read, 8, 9, 1),
            ],
        ),
        ("and not before it began", false, &[call(Read, 1, 2, 1), unknown(Write(1), 3)]),
        ("two win one swap", false, &[call(Swap(0, 1), 1, 4, 1), call(Swap(0, 2), 2, 3, 1)]),
        ("one of two wins", true, &[call(Swap(0, 1), 1, 4, 1), call(Swap(0, 2), 2, 3, 0)]),
        ("nobody wins what was free", false, &[call(Swap(0, 1), 1, 4, 0), call(Swap(0, 2), 2, 3, 0)]),
        ("a swap that was lost", false, &[call(Swap(0, 1), 1, 2, 1), call(Read, 3, 4, 0)]),
    ];
    for (what, right, history) in cases {
        assert_eq!(accepted(history), *right, "{what}: {history:?}");
    }
}

/// A refusal that names nothing would have to be searched for by hand.
#[test]
fn a_refusal_names_what_cannot_be() {
    let history = [call(Do::Write(1), 1, 2, 0), call(Do::Write(2), 3, 4, 0), call(Do::Read, 5, 6, 1)];
    let refused = check(&Register, 0, &history, 1000);
    assert_eq!(refused, Verdict::Refused { explained: 2, state: 2, stuck: vec![2] });
    assert_eq!(check(&Register, 0, &history, 2), Verdict::Undecided);
}

/// All orders, one by one.
fn by_force(state: u8, left: &[Line]) -> bool {
    if left.iter().all(|call| call.end.is_none()) {
        return true;
    }
    (0..left.len()).any(|at| {
        let call = &left[at];
        let late = left.iter().any(|other| other.end.is_some_and(|(end, _)| end < call.begin));
        let mut rest = left.to_vec();
        rest.remove(at);
        let output = call.end.as_ref().map(|(_, output)| output);
        !late && Register.step(&state, &call.input, output).is_some_and(|after| by_force(after, &rest))
    })
}

fn random(rng: &SimRng) -> Vec<Line> {
    let mut moments: Vec<u64> = (0..20).collect();
    let mut take = |rng: &SimRng| moments.remove(rng.index(moments.len()));
    (0..2 + rng.index(5))
        .map(|client| {
            let (one, other) = (take(rng), take(rng));
            let input = match rng.range(0..3) {
                0 => Do::Write(rng.range(0..3) as u8),
                1 => Do::Swap(rng.range(0..3) as u8, rng.range(0..3) as u8),
                _ => Do::Read,
            };
            let told = if matches!(input, Do::Read) { rng.range(0..3) } else { rng.range(0..2) } as u8;
            let told = if matches!(input, Do::Write(_)) { 0 } else { told };
            let end = (rng.index(5) != 0).then_some((one.max(other), told));
            Call { client, input, begin: one.min(other), end }
        })
        .collect()
}

/// A history that some order explains would be refused, or one that none explains accepted.
#[test]
fn it_says_what_trying_all_orders_says() {
    let rng = SimRng::seeded(11);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..4000 {
        let history = random(&rng);
        let right = by_force(0, &history);
        assert_eq!(accepted(&history), right, "{history:?}");
        *(if right { &mut good } else { &mut bad }) += 1;
    }
    assert!(good > 300 && bad > 300, "{good} good and {bad} bad histories are no trial");
}

/// Long histories of several clients would never be decided, good or bad.
#[test]
fn long_histories_are_decided() {
    let rng = SimRng::seeded(5);
    let mut history: Vec<Line> = Vec::new();
    let (mut state, mut now) = (0u8, 0u64);
    // Each takes effect at a moment of its own; around it begin and end lie far enough apart for six others.
    for client in 0..600 {
        now += 10;
        let input = match rng.range(0..3) {
            0 => Do::Write(rng.range(0..4) as u8),
            1 => Do::Swap(rng.range(0..4) as u8, rng.range(0..4) as u8),
            _ => Do::Read,
        };
        let lost = rng.index(150) == 0;
        let told = match input {
            Do::Read => state,
            Do::Swap(from, _) => u8::from(from == state),
            Do::Write(_) => 0,
        };
        if !(lost && rng.index(2) == 0) {
            state = Register.step(&state, &input, None).expect("anything can be done");
        }
        let begin = now - rng.range(0..now.min(30));
        let end = (!lost).then(|| (now + rng.range(0..30), told));
        history.push(Call { client, input, begin, end });
    }
    assert!(accepted(&history));
    let last = history.iter_mut().rev().find(|call| matches!(call.input, Do::Read) && call.end.is_some());
    last.expect("some read").end = Some((now + 100, 9));
    assert!(!accepted(&history), "9 was never written");
}
