// Every attention technique with native code. A technique is registered by two lines: its file and
// its type.
//
// A file has two parts. The first, for the whole extension, is the technique's parameters; it is
// compiled with attention_rule.h, which says what a technique must declare. The second is its stop
// test; it is compiled with the kernels, once for each instruction set, where SUFFICE_LEVEL is
// defined:
//
//   bool may_stop(const T& rule, const Seen& seen, int q)   see kernels/seen.inl
//   bool leaves_out(const T& rule, const Seen& seen, int row, Largest largest)   with kOldestFirst
#include "aet.inl"
#include "art.inl"
#include "certified.inl"
#include "read_all.inl"
#include "skip_softmax.inl"
#include "tiers.inl"

#ifndef SUFFICE_LEVEL
// The first is the default.
using Technique = std::variant<ReadAll, Aet, Art, Certified, SkipSoftmax, Tiers>;
#endif
