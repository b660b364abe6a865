//! A sum tree: samples leaves in proportion to their weights.

/// Children of a node: 8 values of `f64` fill one cache line.
const WIDTH: usize = 8;

/// A tree of sums over weighted leaves: changes a leaf and finds the leaf at a given mass in
/// time that grows with the logarithm of the number of leaves.
///
/// Every inner value is the sum of its children, added in a fixed order and never patched with
/// differences: the sums are a function of the leaves alone. They do not drift however long the
/// tree is used, and a tree rebuilt from its leaves is equal bit for bit.
#[derive(Clone, Debug)]
pub struct SumTree {
    leaves: usize,
    /// From the leaves (level 0) to the root's children.
    levels: Vec<Vec<Node>>,
    total: f64,
    /// Nodes whose sums have to be taken again; kept to reuse its memory.
    stale: Vec<usize>,
}

/// The values of one group of siblings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(align(64))]
struct Node([f64; WIDTH]);

impl SumTree {
    /// A tree whose leaves all weigh nothing.
    ///
    /// # Panics
    /// When there is not a single leaf.
    pub fn new(leaves: usize) -> Self {
        assert!(leaves > 0, "a sum tree needs a leaf");
        let mut levels = Vec::new();
        let mut nodes = leaves;
        loop {
            nodes = nodes.div_ceil(WIDTH);
            levels.push(vec![Node::default(); nodes]);
            if nodes == 1 {
                break;
            }
        }
        let (total, stale) = (0.0, Vec::new());
        Self {
            leaves,
            levels,
            total,
            stale,
        }
    }

    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// Weight of all leaves together.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Weight of one leaf.
    ///
    /// # Panics
    /// When there is no such leaf.
    pub fn get(&self, leaf: usize) -> f64 {
        assert!(leaf < self.leaves, "leaf {leaf} of {}", self.leaves);
        self.levels[0][leaf / WIDTH].0[leaf % WIDTH]
    }

    /// Changes the weight of one leaf.
    ///
    /// # Panics
    /// When there is no such leaf, or the weight is negative or not finite.
    pub fn set(&mut self, leaf: usize, weight: f64) {
        self.write(leaf, weight);
        let mut node = leaf / WIDTH;
        for level in 1..self.levels.len() {
            self.sum_into(level, node);
            node /= WIDTH;
        }
        self.total = self.root();
    }

    /// Changes the weights of many leaves; where a leaf is named twice, the last weight stays.
    ///
    /// # Panics
    /// As [`set`](SumTree::set).
    pub fn set_many(&mut self, weights: impl IntoIterator<Item = (usize, f64)>) {
        let mut stale = std::mem::take(&mut self.stale);
        stale.clear();
        for (leaf, weight) in weights {
            self.write(leaf, weight);
            push_new(&mut stale, leaf / WIDTH);
        }
        // Level by level, so that the reads of different nodes overlap in the processor.
        for level in 1..self.levels.len() {
            let mut kept = 0;
            for i in 0..stale.len() {
                let node = stale[i];
                self.sum_into(level, node);
                let parent = node / WIDTH;
                if kept == 0 || stale[kept - 1] != parent {
                    stale[kept] = parent;
                    kept += 1;
                }
            }
            stale.truncate(kept);
        }
        self.total = self.root();
        self.stale = stale;
    }

    /// The leaf at which the running sum of weights passes `mass`, for `0 <= mass < total()`.
    ///
    /// Never a leaf without weight, also where `mass` is out of range or rounding leads past the
    /// last leaf.
    ///
    /// # Panics
    /// When no leaf has weight.
    pub fn find(&self, mass: f64) -> usize {
        assert!(self.total > 0.0, "no leaf has weight");
        let mut cursor = Cursor::at(mass);
        for level in self.levels.iter().rev() {
            cursor.descend(level);
        }
        cursor.node
    }

    /// [`find`](SumTree::find) for many masses: replaces `found` by their leaves, in order.
    ///
    /// # Panics
    /// When no leaf has weight.
    pub fn find_many(&self, masses: &[f64], found: &mut Vec<usize>) {
        assert!(self.total > 0.0, "no leaf has weight");
        found.clear();
        // Groups go down together: their reads overlap in the processor.
        for group in masses.chunks(GROUP) {
            let mut cursors = [Cursor::at(0.0); GROUP];
            for (cursor, &mass) in cursors.iter_mut().zip(group) {
                *cursor = Cursor::at(mass);
            }
            let cursors = &mut cursors[..group.len()];
            for level in self.levels.iter().rev() {
                for cursor in cursors.iter_mut() {
                    cursor.descend(level);
                }
            }
            found.extend(cursors.iter().map(|c| c.node));
        }
    }

    /// Memory in use.
    pub fn bytes(&self) -> usize {
        let nodes: usize = self.levels.iter().map(Vec::len).sum();
        nodes * size_of::<Node>() + self.stale.capacity() * size_of::<usize>()
    }

    fn write(&mut self, leaf: usize, weight: f64) {
        assert!(leaf < self.leaves, "leaf {leaf} of {}", self.leaves);
        assert!(
            weight >= 0.0 && weight.is_finite(),
            "a weight of {weight} cannot be sampled"
        );
        self.levels[0][leaf / WIDTH].0[leaf % WIDTH] = weight;
    }

    /// Writes the sum of a node one level below into its place on `level`.
    fn sum_into(&mut self, level: usize, node: usize) {
        let sum = self.levels[level - 1][node].sum();
        self.levels[level][node / WIDTH].0[node % WIDTH] = sum;
    }

    fn root(&self) -> f64 {
        self.levels.last().map_or(0.0, |top| top[0].sum())
    }
}

/// Masses that are looked up side by side.
const GROUP: usize = 16;

/// One search on its way down.
#[derive(Clone, Copy)]
struct Cursor {
    node: usize,
    mass: f64,
}

impl Cursor {
    fn at(mass: f64) -> Self {
        // Not a number becomes 0 as well.
        let (node, mass) = (0, mass.max(0.0));
        Self { node, mass }
    }

    /// Goes from a node to the child that holds the mass.
    fn descend(&mut self, level: &[Node]) {
        let Node(children) = &level[self.node];
        // How many children end at or before the mass, and where the last of those ends. The
        // first child that ends after it weighs something, since sums only grow there.
        let (mut passed, mut start, mut end) = (0, 0.0, 0.0);
        for &child in children {
            end += child;
            if end <= self.mass {
                passed += 1;
                start = end;
            }
        }
        if passed < WIDTH {
            self.mass -= start;
        } else {
            // Rounding: the mass lies at or past the end, which belongs to the last weight.
            passed = children.iter().rposition(|&c| c > 0.0).unwrap_or(0);
            self.mass = children[passed];
        }
        self.node = self.node * WIDTH + passed;
    }
}

impl Node {
    fn sum(&self) -> f64 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
}

fn push_new(list: &mut Vec<usize>, value: usize) {
    if list.last() != Some(&value) {
        list.push(value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: the first leaf whose running sum is above the mass.
    fn naive_find(weights: &[f64], mass: f64) -> usize {
        let mut sum = 0.0;
        for (leaf, weight) in weights.iter().enumerate() {
            sum += weight;
            if sum > mass {
                return leaf;
            }
        }
        weights.iter().rposition(|&w| w > 0.0).unwrap()
    }

    #[test]
    fn a_leaf_is_found_from_its_start_up_to_its_end() {
        let mut tree = SumTree::new(3);
        tree.set_many([(0, 1.0), (1, 2.0), (2, 0.5)]);
        assert_eq!(tree.total(), 3.5);
        let found = [0.0, 0.99, 1.0, 2.99, 3.0, 3.49].map(|mass| tree.find(mass));
        assert_eq!(found, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_mass_out_of_range_still_finds_a_leaf_with_weight() {
        let mut tree = SumTree::new(1000);
        tree.set(37, 0.25);
        for mass in [-1.0, 0.0, 0.25, 1.0, f64::INFINITY, f64::NAN] {
            assert_eq!(tree.find(mass), 37, "mass {mass}");
        }
    }

    #[test]
    fn a_million_changes_leave_the_sums_of_a_fresh_tree() {
        let mut used = SumTree::new(777);
        let mut state = 1u64;
        for _ in 0..1_000_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let weight = (state >> 20) as f64 * 1e-7;
            used.set((state >> 33) as usize % 777, weight);
        }
        let mut fresh = SumTree::new(777);
        fresh.set_many((0..777).map(|leaf| (leaf, used.get(leaf))));
        assert_eq!(used.levels, fresh.levels);
        assert_eq!(used.total().to_bits(), fresh.total().to_bits());
    }

    #[test]
    #[should_panic(expected = "a weight of NaN")]
    fn a_weight_that_is_no_number_is_refused() {
        SumTree::new(4).set(1, f64::NAN);
    }

    proptest! {
        /// Whole numbers, so that sums are exact and the comparison is too.
        #[test]
        fn finds_what_a_prefix_sum_finds(
            leaves in 1usize..700,
            changes in prop::collection::vec((0usize..700, 0u32..4), 1..300),
            masses in prop::collection::vec(0.0f64..1.0, 1..60),
        ) {
            let mut tree = SumTree::new(leaves);
            let mut one_by_one = SumTree::new(leaves);
            let mut weights = vec![0.0; leaves];
            let changes: Vec<(usize, f64)> =
                changes.iter().map(|&(leaf, w)| (leaf % leaves, f64::from(w))).collect();
            for &(leaf, weight) in &changes {
                weights[leaf] = weight;
                one_by_one.set(leaf, weight);
            }
            tree.set_many(changes);
            let total: f64 = weights.iter().sum();
            prop_assert_eq!(tree.total(), total);
            prop_assert_eq!(&tree.levels, &one_by_one.levels);
            for (leaf, &weight) in weights.iter().enumerate() {
                prop_assert_eq!(tree.get(leaf), weight);
            }
            if total > 0.0 {
                let masses: Vec<f64> = masses.iter().map(|m| m * total).collect();
                let mut found = vec![];
                tree.find_many(&masses, &mut found);
                for (&mass, &leaf) in masses.iter().zip(&found) {
                    prop_assert_eq!(leaf, naive_find(&weights, mass));
                    prop_assert_eq!(leaf, tree.find(mass));
                }
            }
        }

        /// Weights over twenty orders of magnitude: rounding may move a border, but never to a
        /// leaf without weight.
        #[test]
        fn never_finds_a_leaf_without_weight(
            weights in prop::collection::vec((any::<bool>(), -10.0f64..10.0), 1..400),
            masses in prop::collection::vec(0.0f64..=1.0, 1..60),
        ) {
            let mut tree = SumTree::new(weights.len());
            tree.set_many(weights.iter().enumerate().map(|(leaf, &(on, exponent))| {
                (leaf, if on { 10f64.powf(exponent) } else { 0.0 })
            }));
            prop_assume!(tree.total() > 0.0);
            for mass in masses {
                let leaf = tree.find(mass * tree.total());
                prop_assert!(tree.get(leaf) > 0.0);
            }
        }
    }
}
