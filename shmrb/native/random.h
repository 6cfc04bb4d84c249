// xoshiro256++ (Blackman and Vigna) seeded through splitmix64, with unbiased bounded integers of 64 bits (Lemire).
#pragma once

#include <cstdint>
#include <mutex>

namespace shmrb {

class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) word = splitmix(seed);
  }

  uint64_t next() {
    uint64_t result = rotate(state_[0] + state_[3], 23) + state_[0];
    uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound). REQUIRES: bound > 0.
  uint64_t below(uint64_t bound) {
    unsigned __int128 product = static_cast<unsigned __int128>(next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      uint64_t threshold = -bound % bound;
      while (static_cast<uint64_t>(product) < threshold) product = static_cast<unsigned __int128>(next()) * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

  // Uniform in [0, 1), 53 bits.
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  static uint64_t splitmix(uint64_t& state) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }

 private:
  static uint64_t rotate(uint64_t x, int k) { return x << k | x >> (64 - k); }
  uint64_t state_[4];
};

// One handle's stream. Threads that share the handle each draw with a generator of their own that the stream seeds, so
// a call holds the stream for one step only and a seeded handle repeats itself.
class Stream {
 public:
  explicit Stream(uint64_t seed) : random_(seed) {}
  Random fork() {
    std::lock_guard<std::mutex> guard(mutex_);
    return Random(random_.next());
  }

 private:
  std::mutex mutex_;
  Random random_;
};

}  // namespace shmrb
