// SPDX-License-Identifier: Apache-2.0
//! How long connections live, how much they carry and how long servers are away.
//!
//! The steps are those of JET's simulation (Mendelson et al., "Load Balancing with JET", CoNEXT
//! 2021; anchorhash/jetlb): a large cluster's connections and the upgrades that SilkRoad reports,
//! the sources that Cheetah names, too. As there, a value is the upper end of its step.

use rand::Rng;
use rand_pcg::Pcg64Mcg;

/// A distribution over a few values: their cumulated shares.
#[derive(Debug, Clone, Copy)]
pub struct Steps(&'static [(f64, f64)]);

/// Life of a connection, seconds; 21.3 on the mean.
pub const DURATION_S: Steps = Steps(&[
    (0.293_357_933_6, 0.001),
    (0.378_228_782_3, 0.002_001_660_865),
    (0.405_904_059, 0.002_989_009_054),
    (0.452_029_520_3, 0.008_934_175_126),
    (0.476_014_760_1, 0.025_496_994_59),
    (0.501_845_018_5, 0.310_095_015_7),
    (0.547_970_479_7, 10.276_433_36),
    (0.760_147_601_5, 10.436_141_93),
    (0.898_523_985_2, 22.914_789_65),
    (0.928_044_280_4, 36.395_096_37),
    (0.948_339_483_4, 100.712_243_6),
    (0.957_564_575_6, 214.418_886_3),
    (0.998_154_981_5, 228.062_196_3),
    (1.0, 602.559_586_1),
]);

/// What a connection carries, kB.
pub const SIZE_KB: Steps = Steps(&[
    (0.003_710_575_139, 0.160_277_532_1),
    (0.009_276_437_848, 0.213_257_176_3),
    (0.018_552_875_7, 0.256_234_653_9),
    (0.044_526_901_67, 0.289_596_974_2),
    (0.059_369_202_23, 0.320_693_980_7),
    (0.137_291_280_1, 0.327_303_135_7),
    (0.141_001_855_3, 0.362_449_040_7),
    (0.152_133_580_7, 0.385_323_084_1),
    (0.204_081_632_7, 0.393_264_174_9),
    (0.220_779_220_8, 0.444_468_033_4),
    (0.261_595_547_3, 0.482_256_358_4),
    (0.272_727_272_7, 0.534_041_184_9),
    (0.309_833_024_1, 0.591_386_681_1),
    (0.326_530_612_2, 0.628_708_906),
    (0.458_256_029_7, 0.641_665_914_6),
    (0.584_415_584_4, 0.836_528_265_9),
    (0.625_231_910_9, 1.310_347_515),
    (0.660_482_374_8, 1.708_276_394),
    (0.706_864_564, 7.573_406_209),
    (0.716_141_001_9, 32.233_365_13),
    (0.749_536_178_1, 45.594_738_44),
    (0.812_615_955_5, 50.490_714_58),
    (0.829_313_543_6, 72.892_014_97),
    (0.870_129_870_1, 84.080_538_68),
    (0.955_473_098_3, 280.154_474_8),
    (0.977_736_549_2, 1_320.409_829),
    (0.985_157_699_4, 2_244.150_862),
    (0.992_578_849_7, 54_089.360_82),
    (0.998_144_712_4, 271_019.854_3),
    (1.0, 553_450.299_5),
]);

/// Time for which an upgrade takes a server away, seconds.
pub const DOWNTIME_S: Steps = Steps(&[
    (0.006_833_712_984, 60.0),
    (0.043_280_182_23, 120.801_636_9),
    (0.215_034_168_6, 130.733_396_5),
    (0.386_788_154_9, 141.481_700_2),
    (0.558_541_141_2, 153.113_680_3),
    (0.730_296_127_6, 165.701_988_8),
    (0.902_050_113_9, 179.325_250_6),
    (0.965_831_435_1, 304.813_082_8),
    (0.981_776_765_4, 671.693_055_5),
    (0.997_722_095_7, 20_533.594_24),
    (1.0, 567_076.233_9),
]);

impl Steps {
    /// Values with their shares.
    pub fn shares(&self) -> impl Iterator<Item = (f64, f64)> {
        let before = std::iter::once(0.0).chain(self.0.iter().map(|(to, _)| *to));
        self.0
            .iter()
            .zip(before)
            .map(|((to, value), from)| (*value, to - from))
    }

    pub fn mean(&self) -> f64 {
        self.shares().map(|(value, share)| value * share).sum()
    }

    /// One value.
    pub fn draw(&self, rng: &mut Pcg64Mcg) -> f64 {
        let at: f64 = rng.random();
        let found = self.0.iter().find(|(to, _)| at < *to);
        found.or(self.0.last()).map_or(0.0, |(_, value)| *value)
    }

    /// What is left of a time that runs at a moment taken at random: long ones are met more
    /// often, and somewhere in them.
    pub fn draw_rest(&self, rng: &mut Pcg64Mcg) -> f64 {
        let mut at = rng.random::<f64>() * self.mean();
        for (value, share) in self.shares() {
            if at < value * share {
                return value * rng.random::<f64>();
            }
            at -= value * share;
        }
        0.0
    }
}
