// One type of stored rows, known to the compiler.

// Calls f.operator()<T>() for the given type.
template <class F>
auto for_type(Type type, F f) {
  switch (type) {
    case Type::f32: return f.template operator()<Type::f32>();
    case Type::bf16: return f.template operator()<Type::bf16>();
    case Type::f16: return f.template operator()<Type::f16>();
    case Type::i8: return f.template operator()<Type::i8>();
    case Type::planes: return f.template operator()<Type::planes>();
    default: return f.template operator()<Type::kmeans4>();
  }
}
