// SPDX-License-Identifier: Apache-2.0
//! Sharing an amount of weight among receivers with room of their own.

/// Shares `amount` equally among receivers, none of which takes more than its
/// room. What one cannot take goes to the others, equally again. Returns each
/// receiver's part; their sum is `min(amount, sum of rooms)`.
pub(super) fn equally(amount: f64, rooms: &[f64]) -> Vec<f64> {
    let mut parts = vec![0.0; rooms.len()];
    let mut order: Vec<usize> = (0..rooms.len()).collect();
    order.sort_by(|&a, &b| rooms[a].total_cmp(&rooms[b]));
    let mut left = amount;
    for (done, &index) in order.iter().enumerate() {
        let share = left / (rooms.len() - done) as f64;
        parts[index] = share.min(rooms[index].max(0.0));
        left -= parts[index];
    }
    parts
}

/// Changes `weights` so that they sum to `total` and each stays within its
/// bounds, in proportion to the room that each has. `total` must lie between
/// the sums of the bounds.
pub(super) fn fit(weights: &mut [f64], bounds: &[(f64, f64)], total: f64) {
    for (weight, (low, high)) in weights.iter_mut().zip(bounds) {
        *weight = weight.clamp(*low, *high);
    }
    let missing = total - weights.iter().sum::<f64>();
    let room = |weight: f64, (low, high): (f64, f64)| match missing > 0.0 {
        true => high - weight,
        false => weight - low,
    };
    let rooms: f64 = weights.iter().zip(bounds).map(|(w, b)| room(*w, *b)).sum();
    if rooms <= 0.0 {
        return;
    }
    let part = (missing / rooms).clamp(-1.0, 1.0);
    for (weight, bound) in weights.iter_mut().zip(bounds) {
        *weight += part * room(*weight, *bound);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_equal_until_a_room_is_full() {
        assert_eq!(equally(3.0, &[5.0, 5.0, 5.0]), [1.0, 1.0, 1.0]);
        assert_eq!(equally(3.0, &[5.0, 0.5, 5.0]), [1.25, 0.5, 1.25]);
        assert_eq!(equally(9.0, &[1.0, 2.0]), [1.0, 2.0]);
        assert_eq!(equally(1.0, &[]), Vec::<f64>::new());
        assert_eq!(equally(1.0, &[-1.0, 2.0]), [0.0, 1.0]);
    }

    #[test]
    fn fitting_keeps_sum_and_bounds() {
        let bounds = [(0.1, 2.0); 3];
        let mut weights = [0.0, 1.0, 5.0];
        fit(&mut weights, &bounds, 3.0);
        assert!((weights.iter().sum::<f64>() - 3.0).abs() < 1e-12);
        assert!(weights.iter().all(|w| (0.1..=2.0).contains(w)));
        let mut weights = [0.1, 0.1, 0.1];
        fit(&mut weights, &bounds, 6.0);
        assert_eq!(weights, [2.0, 2.0, 2.0]);
    }
}
