// SPDX-License-Identifier: Apache-2.0
//! What one flow needs of an estimator, without what all flows have in common.

use std::fmt;
use std::mem::MaybeUninit;

use super::native::{self, FixedGapState, ModesState, ThreeConfigs, ThreeStates, WindowChainState};
use super::{Method, Packet, Samples};

/// The state of any estimator for one flow. An [`Estimator`](super::Estimator)
/// keeps its parameters with it; with a million flows they are better kept once,
/// so every call here takes the [`Method`] that the state was made for. With
/// another one it does nothing.
///
/// The legal order of calls is that of [`Estimator`](super::Estimator). `None`
/// stands for no sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EstimatorState {
    /// See [`WindowChain`](super::WindowChain).
    WindowChain(WindowChainState),
    /// See [`FixedGap`](super::FixedGap).
    FixedGap(FixedGapState),
    /// See [`Modes`](super::Modes).
    Modes(ModesState),
}

impl EstimatorState {
    /// A flow without packets.
    pub fn new(method: &Method) -> Self {
        match method {
            Method::WindowChain => Self::WindowChain(WindowChainState::default()),
            Method::FixedGap(_) => Self::FixedGap(FixedGapState::default()),
            Method::Modes(_) => Self::Modes(ModesState::default()),
        }
    }

    /// Takes the next packet of the flow. What becomes known stands in `out`.
    #[inline]
    pub fn packet<'a>(
        &mut self,
        method: &Method,
        packet: &Packet,
        out: &'a mut MaybeUninit<Samples>,
    ) -> Option<&'a Samples> {
        match (self, method) {
            (Self::WindowChain(state), _) => native::window_chain_step(state, packet, out),
            (Self::FixedGap(state), Method::FixedGap(config)) => {
                native::fixed_gap_step(state, config, packet, out)
            }
            (Self::Modes(state), Method::Modes(config)) => {
                native::modes_packet(state, config, packet);
                None
            }
            _ => None,
        }
    }

    /// Ends an epoch.
    #[inline]
    pub fn end_epoch(&mut self, method: &Method) -> Option<Samples> {
        match (self, method) {
            (Self::Modes(state), Method::Modes(config)) => {
                some(native::modes_end_epoch(state, config))
            }
            _ => None,
        }
    }

    /// Ends the flow, and with it the epoch.
    pub fn finish(&mut self, method: &Method) -> Option<Samples> {
        match self {
            Self::WindowChain(state) => some(native::window_chain_finish(state)),
            Self::FixedGap(_) | Self::Modes(_) => self.end_epoch(method),
        }
    }
}

/// The states of several estimators of one flow. What each one finds goes by its place in
/// the list of methods; their order is that of [`EstimatorState`].
pub trait Lineup<const N: usize> {
    /// The methods as the states need them, the same in all calls.
    type Plan: Clone + fmt::Debug + Send;

    /// `None` where these are not the methods that it is for.
    fn plan(methods: [Method; N]) -> Option<Self::Plan>;

    /// A flow without packets.
    fn new(plan: &Self::Plan) -> Self;

    /// [`EstimatorState::packet`] of all of them.
    fn packet(&mut self, plan: &Self::Plan, packet: &Packet, found: impl FnMut(usize, &Samples));

    /// [`EstimatorState::end_epoch`] of one.
    fn end_epoch(&mut self, index: usize, plan: &Self::Plan) -> Option<Samples>;

    /// [`EstimatorState::finish`] of one.
    fn finish(&mut self, index: usize, plan: &Self::Plan) -> Option<Samples>;
}

impl<const N: usize> Lineup<N> for [EstimatorState; N] {
    type Plan = [Method; N];

    fn plan(methods: [Method; N]) -> Option<[Method; N]> {
        Some(methods)
    }

    fn new(methods: &[Method; N]) -> Self {
        std::array::from_fn(|index| EstimatorState::new(&methods[index]))
    }

    #[inline(always)]
    fn packet(
        &mut self,
        methods: &[Method; N],
        packet: &Packet,
        mut found: impl FnMut(usize, &Samples),
    ) {
        let mut out = MaybeUninit::uninit();
        for (index, (state, method)) in self.iter_mut().zip(methods).enumerate() {
            if let Some(samples) = state.packet(method, packet, &mut out) {
                found(index, samples);
            }
        }
    }

    fn end_epoch(&mut self, index: usize, methods: &[Method; N]) -> Option<Samples> {
        self[index].end_epoch(&methods[index])
    }

    fn finish(&mut self, index: usize, methods: &[Method; N]) -> Option<Samples> {
        self[index].finish(&methods[index])
    }
}

/// The states of all three, in the order of [`Method`]: one call for a packet, and no more
/// memory than they need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Three(ThreeStates);

impl Lineup<3> for Three {
    type Plan = ThreeConfigs;

    fn plan(methods: [Method; 3]) -> Option<ThreeConfigs> {
        match methods {
            [
                Method::WindowChain,
                Method::FixedGap(gap),
                Method::Modes(modes),
            ] => Some(ThreeConfigs { gap, modes }),
            _ => None,
        }
    }

    fn new(_: &ThreeConfigs) -> Self {
        Self::default()
    }

    #[inline(always)]
    fn packet(
        &mut self,
        configs: &ThreeConfigs,
        packet: &Packet,
        mut found: impl FnMut(usize, &Samples),
    ) {
        let mut out = [MaybeUninit::uninit(); 2];
        let samples = native::three_step(&mut self.0, configs, packet, &mut out);
        for (index, samples) in samples.into_iter().enumerate() {
            if let Some(samples) = samples {
                found(index, samples);
            }
        }
    }

    fn end_epoch(&mut self, index: usize, configs: &ThreeConfigs) -> Option<Samples> {
        match index {
            2 => some(native::modes_end_epoch(&mut self.0.modes, &configs.modes)),
            _ => None,
        }
    }

    fn finish(&mut self, index: usize, configs: &ThreeConfigs) -> Option<Samples> {
        match index {
            0 => some(native::window_chain_finish(&mut self.0.chain)),
            _ => self.end_epoch(index, configs),
        }
    }
}

fn some(samples: Samples) -> Option<Samples> {
    samples.iter().next().is_some().then_some(samples)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{FixedGapConfig, ModesConfig};
    use super::*;

    fn packet() -> impl Strategy<Value = (u64, Packet)> {
        let flags = prop_oneof![8 => Just(Packet::ACK), 1 => any::<u8>()];
        let proto = prop_oneof![8 => Just(Packet::TCP), 1 => Just(Packet::UDP)];
        let gap_ns = prop_oneof![1u64..1_000_000, 1u64..400_000_000];
        let numbers = (0u32..4, 0u32..4, 0u32..8);
        (gap_ns, 0u32..1500, numbers, flags, proto, any::<bool>()).prop_map(
            |(gap_ns, payload_len, (seq, ack, tsecr), tcp_flags, proto, has_ts)| {
                let packet = Packet {
                    ip_len: payload_len + 52,
                    payload_len,
                    seq: seq * 700,
                    ack: ack * 5000,
                    tsecr,
                    tcp_flags,
                    has_ts,
                    proto,
                    ..Packet::default()
                };
                (gap_ns, packet)
            },
        )
    }

    proptest! {
        /// One call for the three estimators does what three calls do.
        #[test]
        fn all_at_once_is_one_after_the_other(
            packets in proptest::collection::vec(packet(), 1..300),
        ) {
            let methods = [
                Method::WindowChain,
                Method::FixedGap(FixedGapConfig::default()),
                Method::Modes(ModesConfig::default()),
            ];
            let plan = Three::plan(methods.clone()).expect("these are its methods");
            let mut together = Three::new(&plan);
            let mut apart = <[EstimatorState; 3]>::new(&methods);
            let (mut t_ns, mut seq, mut ack) = (1_000_000_000, 0u32, 0u32);
            for (step, (gap_ns, packet)) in packets.into_iter().enumerate() {
                t_ns += gap_ns;
                seq = seq.wrapping_add(packet.seq);
                ack = ack.wrapping_add(packet.ack);
                let packet = Packet { t_ns, seq, ack, ..packet };
                let (mut at_once, mut one_by_one) = (Vec::new(), Vec::new());
                together.packet(&plan, &packet, |at, samples| at_once.push((at, *samples)));
                apart.packet(&methods, &packet, |at, samples| one_by_one.push((at, *samples)));
                if step % 16 == 15 {
                    for at in 0..3 {
                        at_once.extend(together.end_epoch(at, &plan).map(|all| (at, all)));
                        one_by_one.extend(apart.end_epoch(at, &methods).map(|all| (at, all)));
                    }
                }
                prop_assert_eq!(at_once, one_by_one);
                let states = [
                    EstimatorState::WindowChain(together.0.chain.clone()),
                    EstimatorState::FixedGap(together.0.gap.clone()),
                    EstimatorState::Modes(together.0.modes.clone()),
                ];
                prop_assert_eq!(&states, &apart);
            }
            for at in 0..3 {
                prop_assert_eq!(together.finish(at, &plan), apart.finish(at, &methods));
            }
        }
    }
}
