//! The macro that gives option structs a setter for each field. It is a file of its own because the options of
//! builds and those of importers use it, and neither depends on the other.

/// Defines a setter for each field of an option struct, with the name of the field.
macro_rules! option_setters {
    ($options:ident { $($field:ident: $type:ty,)* }) => {
        /// A setter for each field, with the same name.
        impl $options {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}
