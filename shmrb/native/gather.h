// Copying records out: column by column, rows prefetched ahead, small rows by fixed-width moves.
#pragma once

#include <utility>

#include "view.h"

namespace shmrb {

constexpr int64_t kPrefetchAhead = 12;
constexpr size_t kPrefetchBytes = 256;  // more of a row than the hardware prefetcher would miss

// One row whose size is known only now: a call of memcpy costs more than copying a small one.
inline void copy_row(void* to, const void* from, size_t bytes) {
  switch (bytes) {
    case 1: return order::copy_payload(to, from, 1);
    case 4: return order::copy_payload(to, from, 4);
    case 8: return order::copy_payload(to, from, 8);
    case 16: return order::copy_payload(to, from, 16);
    case 24: return order::copy_payload(to, from, 24);
    case 32: return order::copy_payload(to, from, 32);
    default: return order::copy_payload(to, from, bytes);
  }
}

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

// A stretch of slots to rows that follow each other; `next` is the stretch after it, whose beginning is fetched meanwhile.
inline void gather_stretch(const View& view, int64_t slot, int64_t row, int64_t count, int64_t next,
                           uint8_t* const* outputs) {
  for (size_t c = 0; c < view.columns.size(); ++c) {
    const Column& column = view.columns[c];
    if (!outputs[c] || !column.base) continue;
    size_t bytes = count * column.row_bytes;
    const uint8_t* ahead = column.base + next * column.row_bytes;
    for (size_t k = 0; k < bytes && k < kPrefetchBytes; k += 64) __builtin_prefetch(ahead + k);
    order::copy_payload(outputs[c] + row * column.row_bytes, column.base + slot * column.row_bytes, bytes);
  }
}

}  // namespace shmrb
