// Versions of any integer or floating dtype as 64-bit keys that are ordered as the versions are.
#pragma once

#include <cstdint>
#include <cstring>

namespace shmrb {

enum VersionKind : uint32_t { kSignedVersion = 0, kUnsignedVersion, kFloatVersion, kBrainFloatVersion, kVersionKinds };

inline bool version_fits(uint32_t kind, size_t bytes) {
  bool whole = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
  if (kind == kBrainFloatVersion) return bytes == 2;
  return whole && kind < kVersionKinds && !(kind == kFloatVersion && bytes == 1);
}

struct VersionKey {
  uint64_t order;
  bool comparable;  // NaN is neither newer nor older than anything
};

// REQUIRES: version_fits(kind, bytes).
inline VersionKey version_key(const uint8_t* from, size_t bytes, VersionKind kind) {
  uint64_t raw = 0;
  std::memcpy(&raw, from, bytes);  // little-endian: the low bytes
  uint64_t sign = 1ull << (8 * bytes - 1);
  if (kind == kUnsignedVersion) return {raw, true};
  if (kind == kSignedVersion) return {raw ^ sign, true};
  int mantissa = kind == kBrainFloatVersion ? 7 : bytes == 2 ? 10 : bytes == 4 ? 23 : 52;
  uint64_t magnitude = raw & (sign - 1);
  uint64_t infinity = (sign - 1) >> mantissa << mantissa;
  bool negative = (raw & sign) && magnitude != 0;  // both zeros are equal
  return {negative ? sign - magnitude : sign + magnitude, magnitude <= infinity};
}

}  // namespace shmrb
