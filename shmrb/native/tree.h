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

  // Recomputes the parents of ascending slots, each once a level.
  void settle(std::vector<int64_t>& slots) const {
    for (size_t level = 0; level < sums_.size(); ++level) {
      size_t kept = 0;
      for (int64_t slot : slots) {
        int64_t node = slot / kFanOut;
        if (kept > 0 && slots[kept - 1] == node) continue;
        slots[kept++] = node;
        recompute(level, node);
      }
      slots.resize(kept);
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
          node[k] = step(left[k], node[k], [&](int64_t child) { return order::peek_value(&children[child]); });
          if (node[k] > last) node[k] = last;
          __builtin_prefetch(level > 1 ? static_cast<const void*>(&sums_[level - 2][node[k] * kFanOut])
                                       : static_cast<const void*>(&leaves_[node[k] * kFanOut]));
        }
      }
      for (int k = 0; k < walks; ++k) {
        int64_t slot = step(left[k], node[k], [&](int64_t child) { return static_cast<double>(leaf(child).mass); });
        slots[start + k] = slot < capacity_ ? slot : capacity_ - 1;
      }
    }
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
  // Which child of `node` the remaining mass falls into.
  template <typename Mass>
  static int64_t step(double& left, int64_t node, Mass mass_of) {
    int64_t first = node * kFanOut;
    int64_t last = first;
    for (int64_t child = first; child < first + kFanOut; ++child) {
      double mass = mass_of(child);
      if (!(mass > 0)) continue;
      if (left < mass) return child;
      left -= mass;
      last = child;
    }
    left = std::numeric_limits<double>::max();  // beyond the end by rounding: the last child with mass, down to the leaf
    return last;
  }

  struct Node {
    double sum;
    float least;  // 0 when no child has mass
  };

  Node of_children(size_t level, int64_t node) const {
    double sum = 0;
    float least = std::numeric_limits<float>::infinity();
    for (int64_t child = node * kFanOut; child < (node + 1) * kFanOut; ++child) {
      float below = level == 0 ? leaf(child).mass : order::peek_value(&minima_[level - 1][child]);
      sum += level == 0 ? static_cast<double>(below) : order::peek_value(&sums_[level - 1][child]);
      if (below > 0 && below < least) least = below;
    }
    return {sum, std::isinf(least) ? 0.0f : least};
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
