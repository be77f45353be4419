//! Enums whose values have names in files and on command lines.

/// Defines an enum of named values: `Value = "name"` for each, and of all `ALL`, `name` and `parse`.
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        pub enum $type:ident { $($(#[$doc:meta])* $value:ident = $name:literal,)* }
    ) => {
        $(#[$about])*
        pub enum $type {
            $($(#[$doc])* $value,)*
        }

        impl $type {
            /// All of them, in order.
            pub const ALL: [$type; [$($name),*].len()] = [$($type::$value),*];

            /// The name in files and on command lines.
            pub const fn name(self) -> &'static str {
                match self { $($type::$value => $name,)* }
            }

            /// The one with a given name.
            pub fn parse(name: &str) -> Option<$type> {
                $type::ALL.into_iter().find(|value| value.name() == name)
            }
        }
    };
}
