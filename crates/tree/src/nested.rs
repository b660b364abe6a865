//! Trees: a leaf, or named children.

use serde::{Deserialize, Serialize};

use crate::{Array, Spec, View, ViewMut};

/// A nested structure with values at its leaves: a single leaf, or children by name.
///
/// A structure of one leaf allocates nothing, so that views of plain observations are free.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Tree<L> {
    /// One value.
    Leaf(L),
    /// Named children, in the order in which they were given.
    Node(Vec<(String, Tree<L>)>),
}

/// Two trees that should have had the same structure, and the path where they differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the structures differ at '{path}'")]
pub struct Mismatch {
    /// Dotted path of the first difference.
    pub path: String,
}

impl<L> Tree<L> {
    /// A node from its named children.
    pub fn node<N: Into<String>>(children: impl IntoIterator<Item = (N, Tree<L>)>) -> Self {
        let children = children.into_iter().map(|(n, c)| (n.into(), c));
        Tree::Node(children.collect())
    }

    /// A node without children: the structure of "nothing".
    pub fn empty() -> Self {
        Tree::Node(Vec::new())
    }

    /// Whether there is no leaf at all.
    pub fn is_empty(&self) -> bool {
        self.leaves().is_empty()
    }

    /// The subtree at a dotted path (`"camera.front"`); the empty path is the tree itself.
    pub fn get(&self, path: &str) -> Option<&Tree<L>> {
        if path.is_empty() {
            return Some(self);
        }
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        match self {
            Tree::Leaf(_) => None,
            Tree::Node(children) => children.iter().find(|(n, _)| n == first)?.1.get(rest),
        }
    }

    /// The subtree at a dotted path, to be changed.
    pub fn get_mut(&mut self, path: &str) -> Option<&mut Tree<L>> {
        if path.is_empty() {
            return Some(self);
        }
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        match self {
            Tree::Leaf(_) => None,
            Tree::Node(children) => {
                let child = children.iter_mut().find(|(n, _)| n == first)?;
                child.1.get_mut(rest)
            }
        }
    }

    /// The value, if this is a single leaf.
    pub fn leaf(&self) -> Option<&L> {
        match self {
            Tree::Leaf(leaf) => Some(leaf),
            Tree::Node(_) => None,
        }
    }

    /// All leaves with their dotted paths, depth first.
    pub fn leaves(&self) -> Vec<(String, &L)> {
        fn walk<'a, L>(tree: &'a Tree<L>, path: &str, out: &mut Vec<(String, &'a L)>) {
            match tree {
                Tree::Leaf(leaf) => out.push((path.to_owned(), leaf)),
                Tree::Node(children) => {
                    for (name, child) in children {
                        walk(child, &join(path, name), out);
                    }
                }
            }
        }
        let mut out = Vec::new();
        walk(self, "", &mut out);
        out
    }

    /// All leaves with their dotted paths, depth first, to be changed.
    pub fn leaves_mut(&mut self) -> Vec<(String, &mut L)> {
        fn walk<'a, L>(tree: &'a mut Tree<L>, path: &str, out: &mut Vec<(String, &'a mut L)>) {
            match tree {
                Tree::Leaf(leaf) => out.push((path.to_owned(), leaf)),
                Tree::Node(children) => {
                    for (name, child) in children {
                        walk(child, &join(path, name), out);
                    }
                }
            }
        }
        let mut out = Vec::new();
        walk(self, "", &mut out);
        out
    }

    /// The same structure with every leaf replaced.
    pub fn map<'a, M>(&'a self, mut f: impl FnMut(&'a L) -> M) -> Tree<M> {
        fn go<'a, L, M>(tree: &'a Tree<L>, f: &mut impl FnMut(&'a L) -> M) -> Tree<M> {
            match tree {
                Tree::Leaf(leaf) => Tree::Leaf(f(leaf)),
                Tree::Node(children) => {
                    Tree::node(children.iter().map(|(n, c)| (n.as_str(), go(c, f))))
                }
            }
        }
        go(self, &mut f)
    }

    /// The same structure with every leaf replaced, from mutable leaves.
    pub fn map_mut<'a, M>(&'a mut self, mut f: impl FnMut(&'a mut L) -> M) -> Tree<M> {
        fn go<'a, L, M>(tree: &'a mut Tree<L>, f: &mut impl FnMut(&'a mut L) -> M) -> Tree<M> {
            match tree {
                Tree::Leaf(leaf) => Tree::Leaf(f(leaf)),
                Tree::Node(children) => {
                    let children = children.iter_mut();
                    Tree::node(children.map(|(n, c)| (n.as_str(), go(c, f))))
                }
            }
        }
        go(self, &mut f)
    }

    /// Calls `f` on the leaves of two trees of the same structure, pair by pair.
    pub fn zip_mut<M>(
        &mut self,
        other: &Tree<M>,
        mut f: impl FnMut(&mut L, &M),
    ) -> Result<(), Mismatch> {
        fn go<L, M>(
            a: &mut Tree<L>,
            b: &Tree<M>,
            path: &str,
            f: &mut impl FnMut(&mut L, &M),
        ) -> Result<(), Mismatch> {
            match (a, b) {
                (Tree::Leaf(a), Tree::Leaf(b)) => f(a, b),
                (Tree::Node(a), Tree::Node(b)) if a.len() == b.len() => {
                    for ((name, a), (other, b)) in a.iter_mut().zip(b) {
                        let path = join(path, name);
                        if name != other {
                            return Err(Mismatch { path });
                        }
                        go(a, b, &path, f)?;
                    }
                }
                _ => return Err(Mismatch { path: path.into() }),
            }
            Ok(())
        }
        go(self, other, "", &mut f)
    }
}

impl Tree<Spec> {
    /// Bytes of one item over all leaves.
    pub fn item_bytes(&self) -> usize {
        self.leaves().iter().map(|(_, spec)| spec.bytes()).sum()
    }
}

impl Tree<Array> {
    /// Arrays of zeros for items of the given specification under leading dimensions.
    pub fn zeros(spec: &Tree<Spec>, leading: &[usize]) -> Self {
        spec.map(|spec| {
            let shape: Vec<usize> = leading.iter().chain(&spec.shape).copied().collect();
            Array::zeros(spec.dtype, &shape)
        })
    }

    /// Views of everything under one leading index.
    pub fn at(&self, index: &[usize]) -> Tree<View<'_>> {
        self.map(|array| array.at(index))
    }

    /// Views of everything under one leading index, to be written.
    pub fn at_mut(&mut self, index: &[usize]) -> Tree<ViewMut<'_>> {
        self.map_mut(|array| array.at_mut(index))
    }

    /// Copies everything under `from` in `source` to `to` in this tree.
    ///
    /// # Errors
    /// When the structures differ.
    ///
    /// # Panics
    /// When an index is out of range or item sizes differ.
    pub fn copy_at(
        &mut self,
        to: &[usize],
        source: &Tree<Array>,
        from: &[usize],
    ) -> Result<(), Mismatch> {
        self.zip_mut(source, |target, source| {
            let source = source.at(from);
            target.at_mut(to).bytes.copy_from_slice(source.bytes);
        })
    }

    /// Bytes of all arrays.
    pub fn byte_len(&self) -> usize {
        self.leaves().iter().map(|(_, a)| a.bytes().len()).sum()
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn spec() -> Tree<Spec> {
        Tree::node([
            ("image", Tree::Leaf(Spec::new(DType::U8, &[2, 2]))),
            (
                "body",
                Tree::node([("speed", Tree::Leaf(Spec::scalar(DType::F32)))]),
            ),
        ])
    }

    #[test]
    fn one_index_writes_the_whole_structure() {
        let mut rollout = Tree::zeros(&spec(), &[4, 3]);
        let Tree::Node(fields) = rollout.at_mut(&[2, 1]) else {
            panic!("a node was given");
        };
        for (name, field) in fields {
            match (name.as_str(), field) {
                ("image", Tree::Leaf(mut view)) => view.write(&[1u8, 2, 3, 4]),
                ("body", mut body) => {
                    let Some(Tree::Leaf(speed)) = body.get_mut("speed") else {
                        panic!("speed is a leaf");
                    };
                    speed.write(&[0.5f32]);
                }
                _ => panic!("unknown field {name}"),
            }
        }
        let mut single = Tree::zeros(&spec(), &[1]);
        single.copy_at(&[0], &rollout, &[2, 1]).unwrap();
        let image = single.get("image").unwrap().leaf().unwrap();
        let speed = single.get("body.speed").unwrap().leaf().unwrap();
        assert_eq!(image.as_slice::<u8>(), [1, 2, 3, 4]);
        assert_eq!(speed.as_slice::<f32>(), [0.5]);
    }

    #[test]
    fn different_structures_name_the_place() {
        let mut a = Tree::zeros(&spec(), &[1]);
        let b = Tree::zeros(
            &Tree::node([
                ("image", Tree::Leaf(Spec::new(DType::U8, &[2, 2]))),
                (
                    "body",
                    Tree::node([("mass", Tree::Leaf(Spec::scalar(DType::F32)))]),
                ),
            ]),
            &[1],
        );
        let error = a.copy_at(&[0], &b, &[0]).unwrap_err();
        assert_eq!(error.path, "body.speed");
    }

    #[test]
    fn sizes_add_up_over_leaves() {
        assert_eq!(spec().item_bytes(), 8);
        assert_eq!(Tree::zeros(&spec(), &[4, 3]).byte_len(), 96);
    }
}
