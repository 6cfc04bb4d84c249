// Copying records out: column by column, rows prefetched ahead, small rows by fixed-width moves.
#pragma once

#include <utility>

#include "view.h"

namespace shmrb {

constexpr int64_t kPrefetchAhead = 12;
constexpr size_t kPrefetchBytes = 256;  // more of a row than the hardware prefetcher would miss

template <size_t kBytes>
inline void gather_fixed(const uint8_t* base, const int64_t* slots, const uint32_t* rows, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + kPrefetchAhead < count) __builtin_prefetch(base + slots[rows[i + kPrefetchAhead]] * kBytes);
    order::copy_payload(out + rows[i] * kBytes, base + slots[rows[i]] * kBytes, kBytes);
  }
}

inline void gather_any(const uint8_t* base, const int64_t* slots, const uint32_t* rows, int64_t count, uint8_t* out,
                       size_t bytes) {
  size_t ahead = bytes < kPrefetchBytes ? bytes : kPrefetchBytes;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kPrefetchAhead < count) {
      const uint8_t* next = base + slots[rows[i + kPrefetchAhead]] * bytes;
      for (size_t k = 0; k < ahead; k += 64) __builtin_prefetch(next + k);
    }
    order::copy_payload(out + rows[i] * bytes, base + slots[rows[i]] * bytes, bytes);
  }
}

// Copies the records of slots[rows[0..count)] to the same rows of each output; an output of null skips its column.
inline void gather(const View& view, const int64_t* slots, const uint32_t* rows, int64_t count,
                   uint8_t* const* outputs) {
  for (size_t c = 0; c < view.columns.size(); ++c) {
    const Column& column = view.columns[c];
    if (!outputs[c] || !column.base) continue;
    switch (column.row_bytes) {
      case 1: gather_fixed<1>(column.base, slots, rows, count, outputs[c]); break;
      case 2: gather_fixed<2>(column.base, slots, rows, count, outputs[c]); break;
      case 4: gather_fixed<4>(column.base, slots, rows, count, outputs[c]); break;
      case 8: gather_fixed<8>(column.base, slots, rows, count, outputs[c]); break;
      case 16: gather_fixed<16>(column.base, slots, rows, count, outputs[c]); break;
      case 24: gather_fixed<24>(column.base, slots, rows, count, outputs[c]); break;
      case 32: gather_fixed<32>(column.base, slots, rows, count, outputs[c]); break;
      default: gather_any(column.base, slots, rows, count, outputs[c], column.row_bytes);
    }
  }
}

// The same where neighbouring rows are mostly neighbouring slots, as those of a window: one copy a stretch.
inline void gather_stretches(const View& view, const int64_t* slots, const uint32_t* rows, int64_t count,
                             uint8_t* const* outputs) {
  int64_t from = 0;
  while (from < count) {
    int64_t to = from + 1;
    while (to < count && rows[to] == rows[to - 1] + 1 && slots[rows[to]] == slots[rows[to - 1]] + 1) ++to;
    for (size_t c = 0; c < view.columns.size(); ++c) {
      const Column& column = view.columns[c];
      if (!outputs[c] || !column.base) continue;
      order::copy_payload(outputs[c] + rows[from] * column.row_bytes, column.base + slots[rows[from]] * column.row_bytes,
                          (to - from) * column.row_bytes);
    }
    from = to;
  }
}

}  // namespace shmrb
