//! Serialisation of arrays that are longer than serde supports, element by element.

use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeTuple, Serializer};

pub(crate) fn serialize<S: Serializer, T: Serialize, const N: usize>(
    array: &[T; N],
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut tuple = to.serialize_tuple(N)?;
    for element in array {
        tuple.serialize_element(element)?;
    }
    tuple.end()
}

pub(crate) fn deserialize<'de, D, T, const N: usize>(from: D) -> Result<[T; N], D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Copy + Default,
{
    from.deserialize_tuple(N, Elements(PhantomData))
}

struct Elements<T, const N: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Copy + Default, const N: usize> Visitor<'de> for Elements<T, N> {
    type Value = [T; N];

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{N} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<[T; N], A::Error> {
        let mut array = [T::default(); N];
        for (index, slot) in array.iter_mut().enumerate() {
            *slot = elements
                .next_element()?
                .ok_or_else(|| A::Error::invalid_length(index, &self))?;
        }
        Ok(array)
    }
}
