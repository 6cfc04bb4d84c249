// The priority tree over shared memory: leaves of raw priority and mass, float64 sums with eight children a node (one
// cache line), float32 minima of the positive masses. Each parent is recomputed from its children, never changed by a
// difference: a tree whose masses are all zero sums to exactly zero, and after any number of updates the root is the sum
// of the leaves. Pure arithmetic: locks and slots are the caller's.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "order.h"
#include "stopping.h"

namespace shmrb {

constexpr int64_t kFanOut = 8;
constexpr int kWalksInStep = 32;  // draws that go down together, each prefetching its next node

struct Leaf {
  float raw;
  float mass;
};
static_assert(sizeof(Leaf) == 8);

inline uint64_t pack_leaf(Leaf leaf) {
  uint64_t bits;
  std::memcpy(&bits, &leaf, sizeof bits);
  return bits;
}

inline Leaf unpack_leaf(uint64_t bits) {
  Leaf leaf;
  std::memcpy(&leaf, &bits, sizeof leaf);
  return leaf;
}

class PriorityTree {
 public:
  PriorityTree() = default;

  // `sums` and `minima` are the levels above the leaves, the root last; each level is padded to whole lines of zeros.
  PriorityTree(uint64_t* leaves, std::vector<double*> sums, std::vector<float*> minima, int64_t capacity)
      : leaves_(leaves), sums_(std::move(sums)), minima_(std::move(minima)), capacity_(capacity) {}

  Leaf leaf(int64_t slot) const { return unpack_leaf(order::peek(&leaves_[slot])); }
  double total() const { return order::peek_value(sums_.back()); }

  // The least positive mass; infinity when there is none.
  float least() const {
    float least = order::peek_value(minima_.back());
    return least > 0 ? least : std::numeric_limits<float>::infinity();
  }

  void set_leaf(int64_t slot, Leaf leaf) const { order::put(&leaves_[slot], pack_leaf(leaf)); }

  // Recomputes the parents of slots [first, first + count).
  void settle_range(int64_t first, int64_t count) const {
    int64_t from = first, to = first + count - 1;
    for (size_t level = 0; level < sums_.size(); ++level) {
      from /= kFanOut;
      to /= kFanOut;
      for (int64_t node = from; node <= to; ++node) recompute(level, node);
      if (level == 0) stopping::at(stopping::kMidTree);
    }
  }

  // Recomputes the parents of these slots, which it uses up. A level with fewer nodes than slots is done whole; in a larger
  // one hardly any node comes up twice, and doing it again changes nothing.
  void settle(std::vector<int64_t>& slots) const {
    for (size_t level = 0; level < sums_.size(); ++level) {
      int64_t last = last_node(level);
      if (last < static_cast<int64_t>(slots.size())) {
        for (int64_t node = 0; node <= last; ++node) recompute(level, node);
      } else {
        for (int64_t& node : slots) {
          node /= kFanOut;
          recompute(level, node);
        }
      }
      if (level == 0) stopping::at(stopping::kMidTree);
    }
  }

  void settle_all() const { settle_range(0, capacity_); }

  // The first leaf whose prefix sum is above each target. REQUIRES: 0 <= target; total() > 0. A target at or above the
  // total goes to the last leaf with mass; a leaf without mass is never found. Whatever bytes the tree holds, what is
  // found is a slot.
  void locate(const double* targets, int64_t count, int64_t* slots) const {
    double left[kWalksInStep];
    int64_t node[kWalksInStep];
    for (int64_t start = 0; start < count; start += kWalksInStep) {
      int walks = static_cast<int>(count - start < kWalksInStep ? count - start : kWalksInStep);
      for (int k = 0; k < walks; ++k) {
        left[k] = targets[start + k];
        node[k] = 0;
      }
      for (size_t level = sums_.size() - 1; level > 0; --level) {
        const double* children = sums_[level - 1];
        int64_t last = last_node(level - 1);
        for (int k = 0; k < walks; ++k) {
          const double* masses = &children[node[k] * kFanOut];
          node[k] = node[k] * kFanOut + step(left[k], [masses](int64_t child) { return masses[child]; });
          if (node[k] > last) node[k] = last;
          __builtin_prefetch(level > 1 ? static_cast<const void*>(&sums_[level - 2][node[k] * kFanOut])
                                       : static_cast<const void*>(&leaves_[node[k] * kFanOut]));
        }
      }
      for (int k = 0; k < walks; ++k) {
        const uint64_t* leaves = &leaves_[node[k] * kFanOut];
        int64_t child = step(left[k], [leaves](int64_t i) { return static_cast<double>(unpack_leaf(leaves[i]).mass); });
        int64_t slot = node[k] * kFanOut + child;
        slots[start + k] = slot < capacity_ ? slot : capacity_ - 1;
      }
    }
  }

  // Fetches what a change of this leaf will write.
  void prefetch(int64_t slot) const {
    __builtin_prefetch(&leaves_[slot], 1);
    __builtin_prefetch(&sums_[0][slot / kFanOut], 1);
    __builtin_prefetch(&minima_[0][slot / kFanOut], 1);
  }

  // Nodes that are not what their children say: 0 in a sound tree.
  int64_t wrong_nodes() const {
    int64_t wrong = 0;
    for (size_t level = 0; level < sums_.size(); ++level) {
      for (int64_t node = 0; node <= last_node(level); ++node) {
        Node now = of_children(level, node);
        wrong += now.sum != order::peek_value(&sums_[level][node]) || now.least != order::peek_value(&minima_[level][node]);
      }
    }
    return wrong;
  }

 private:
  // Which child the remaining mass falls into. No branch depends on the masses: a walk cannot foretell them. Prefix sums
  // are added pairwise, which is shorter than one after the other; a child without mass ends where it begins.
  template <typename Mass>
  static int64_t step(double& left, Mass mass_of) {
    double two = mass_of(0) + mass_of(1);
    double four = two + (mass_of(2) + mass_of(3));
    double six = four + (mass_of(4) + mass_of(5));
    const double ends[kFanOut + 1] = {0,    mass_of(0), two, two + mass_of(2), four, four + mass_of(4),
                                      six,  six + mass_of(6), six + (mass_of(6) + mass_of(7))};
    int64_t passed = 0;
    for (int64_t child = 1; child <= kFanOut; ++child) passed += left >= ends[child];
    if (__builtin_expect(passed < kFanOut, 1)) {
      left -= ends[passed];
      return passed;
    }
    left = std::numeric_limits<double>::max();  // beyond the end by rounding: the last child with mass, down to the leaf
    int64_t last = kFanOut - 1;
    while (last > 0 && !(mass_of(last) > 0)) --last;
    return last;
  }

  struct Node {
    double sum;
    float least;  // 0 when no child has mass
  };

  // Pairwise, with the halves side by side: eight numbers in three steps.
  static Node fold(const double* masses, const float* minima) {
    double sums[4];
    float least[4];
    for (int i = 0; i < 4; ++i) {
      float low = positive_or_infinite(minima[i]), high = positive_or_infinite(minima[i + 4]);
      sums[i] = masses[i] + masses[i + 4];
      least[i] = low < high ? low : high;
    }
    double sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    float even = least[0] < least[2] ? least[0] : least[2];
    float odd = least[1] < least[3] ? least[1] : least[3];
    float smallest = even < odd ? even : odd;
    return {sum, smallest < std::numeric_limits<float>::infinity() ? smallest : 0.0f};
  }

  static float positive_or_infinite(float mass) {
    return mass > 0 ? mass : std::numeric_limits<float>::infinity();
  }

  Node of_children(size_t level, int64_t node) const {
    int64_t first = node * kFanOut;
    if (level > 0) return fold(&sums_[level - 1][first], &minima_[level - 1][first]);
    double masses[kFanOut];
    float minima[kFanOut];
    for (int64_t child = 0; child < kFanOut; ++child) {
      minima[child] = unpack_leaf(leaves_[first + child]).mass;
      masses[child] = minima[child];
    }
    return fold(masses, minima);
  }

  void recompute(size_t level, int64_t node) const {
    Node now = of_children(level, node);
    order::put_value(&sums_[level][node], now.sum);
    order::put_value(&minima_[level][node], now.least);
  }

  // The last node of a level that has slots below it; the line it lies on may go on.
  int64_t last_node(size_t level) const {
    int64_t last = capacity_ - 1;
    for (size_t above = 0; above <= level; ++above) last /= kFanOut;
    return last;
  }

  uint64_t* leaves_ = nullptr;
  std::vector<double*> sums_;
  std::vector<float*> minima_;
  int64_t capacity_ = 0;
};

}  // namespace shmrb
