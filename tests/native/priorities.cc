// The priority tree: where a mass falls, what a parent holds, and what is left of both after deaths and hostile bytes.
#include <cmath>
#include <limits>

#include "arena.h"

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Grown {
  explicit Grown(const std::vector<float>& masses) : room(static_cast<int64_t>(masses.size())), tree(room.tree()) {
    for (size_t i = 0; i < masses.size(); ++i) tree.set_leaf(static_cast<int64_t>(i), {masses[i], masses[i]});
    tree.settle_all();
  }
  int64_t locate(double target) const {
    int64_t slot = -1;
    tree.locate(&target, 1, &slot);
    return slot;
  }
  TreeRoom room;
  PriorityTree tree;
};

std::vector<float> random_masses(Random& random, int64_t count) {
  std::vector<float> masses(count);
  for (float& mass : masses) mass = random.below(3) ? static_cast<float>(random.unit()) : 0;
  return masses;
}

void update_random(const View& view, Random& random, float raw) {
  int64_t index[4];
  float values[4];
  uint8_t verdicts[4];
  for (int i = 0; i < 4; ++i) {
    index[i] = static_cast<int64_t>(random.below(view.capacity));
    values[i] = random.below(4) ? raw : 0;
  }
  finish([&] { return update_priorities(view, 4, index, nullptr, values, verdicts, soon()); });
}

}  // namespace

TEST(a_mass_on_a_boundary_belongs_to_the_leaf_that_it_begins) {
  Grown grown({10, 5, 2});
  CHECK(grown.tree.total() == 17);
  const std::pair<double, int64_t> expected[] = {{0, 0},   {9.999, 0}, {10, 1}, {14.999, 1}, {15, 2},
                                                 {16, 2},  {std::nextafter(17.0, 0.0), 2},   {17, 2}, {kInfinity, 2}};
  for (auto [target, slot] : expected) CHECK(grown.locate(target) == slot);
}

TEST(the_only_leaf_with_mass_is_found_whatever_the_capacity) {
  for (int64_t capacity : {1, 2, 3, 5, 6, 7, 8, 9, 63, 64, 65, 1000}) {
    for (int64_t slot = 0; slot < capacity; ++slot) {
      std::vector<float> masses(capacity, 0.0f);
      masses[slot] = 0.25f;
      Grown grown(masses);
      CHECK(grown.tree.total() == 0.25);
      CHECK(grown.tree.least() == 0.25f);
      for (double target : {0.0, 0.1, 0.25, 1.0}) CHECK(grown.locate(target) == slot);
    }
  }
}

TEST(locating_walks_the_prefix_sums) {
  Random random(5);
  for (int64_t round = 0; round < check::rounds(200, 5'000); ++round) {
    auto capacity = static_cast<int64_t>(1 + random.below(700));
    std::vector<float> masses = random_masses(random, capacity);
    Grown grown(masses);
    std::vector<double> ends;
    double sum = 0;
    for (float mass : masses) ends.push_back(sum += mass);
    if (!(sum > 0)) continue;
    CHECK(std::abs(grown.tree.total() - sum) <= 1e-12 * sum);
    for (int draw = 0; draw < 50; ++draw) {
      double target = random.unit() * grown.tree.total();
      int64_t slot = grown.locate(target);
      CHECK(masses[slot] > 0);
      double begin = slot ? ends[slot - 1] : 0;
      CHECK(target >= begin - 1e-12 * sum && target <= ends[slot] + 1e-12 * sum);
    }
  }
}

TEST(partial_settling_is_the_whole_settling) {
  Random random(6);
  for (int64_t round = 0; round < check::rounds(300, 10'000); ++round) {
    auto capacity = static_cast<int64_t>(1 + random.below(300));
    Grown grown(random_masses(random, capacity));
    std::vector<int64_t> slots;
    for (uint64_t i = random.below(20); i > 0; --i) slots.push_back(static_cast<int64_t>(random.below(capacity)));
    std::sort(slots.begin(), slots.end());
    for (int64_t slot : slots) grown.tree.set_leaf(slot, {1, static_cast<float>(random.unit())});
    grown.tree.settle(slots);
    CHECK(grown.tree.wrong_nodes() == 0);
    auto first = static_cast<int64_t>(random.below(capacity));
    auto count = static_cast<int64_t>(1 + random.below(capacity - first));
    for (int64_t slot = first; slot < first + count; ++slot) grown.tree.set_leaf(slot, {0, 0});
    grown.tree.settle_range(first, count);
    CHECK(grown.tree.wrong_nodes() == 0);
    for (int64_t slot = 0; slot < capacity; ++slot) grown.tree.set_leaf(slot, {0, 0});
    grown.tree.settle_all();
    CHECK(grown.tree.total() == 0);
    CHECK(std::isinf(grown.tree.least()));
  }
}

TEST(keys_of_versions_are_ordered_as_the_versions_are) {
  const double doubles[] = {-kInfinity, -1e300, -1.5, -1e-310, 0.0, 1e-310, 1.5, 1e300, kInfinity};
  const float floats[] = {-1e30f, -2.0f, -1e-44f, 0.0f, 1e-44f, 2.0f, 1e30f};
  const int16_t shorts[] = {-32768, -1, 0, 1, 32767};
  const uint64_t words[] = {0, 1, 1ull << 63, ~0ull};
  auto ascending = [](const auto& values, VersionKind kind) {
    using Value = std::decay_t<decltype(values[0])>;
    for (size_t i = 1; i < sizeof values / sizeof values[0]; ++i) {
      VersionKey below = version_key(reinterpret_cast<const uint8_t*>(&values[i - 1]), sizeof(Value), kind);
      VersionKey above = version_key(reinterpret_cast<const uint8_t*>(&values[i]), sizeof(Value), kind);
      CHECK(below.order < above.order && below.comparable && above.comparable);
    }
  };
  ascending(doubles, kFloatVersion);
  ascending(floats, kFloatVersion);
  ascending(shorts, kSignedVersion);
  ascending(words, kUnsignedVersion);
  auto key = [](auto value, VersionKind kind) {
    return version_key(reinterpret_cast<const uint8_t*>(&value), sizeof value, kind);
  };
  CHECK(key(0.0, kFloatVersion).order == key(-0.0, kFloatVersion).order);
  CHECK(!key(std::nan(""), kFloatVersion).comparable);
  CHECK(!key(uint16_t{0x7c01}, kFloatVersion).comparable && key(uint16_t{0x7c00}, kFloatVersion).comparable);
  CHECK(!key(uint16_t{0x7f81}, kBrainFloatVersion).comparable && key(uint16_t{0x7c01}, kBrainFloatVersion).comparable);
}

TEST(draws_updates_and_writes_of_many_threads_leave_a_sound_tree) {
  Arena arena(96, 3, kOneLock | kPriorities);
  std::vector<std::function<void()>> tasks;
  for (uint32_t lane = 0; lane < 3; ++lane) {
    tasks.push_back([&arena, lane] {
      auto client = arena.join();
      for (int64_t i = 0; i < check::rounds(3'000, 300'000); ++i)
        CHECK(finish([&] {
                return write_records(client->view, {Stamped::of(i), Stamped::of(i + 1), Stamped::of(i + 2)}, lane);
              }).status == kOk);
    });
    tasks.push_back([&arena, lane] {
      auto client = arena.join();
      Random random(lane);
      Drawn drawn(16);
      std::vector<float> weights(16);
      for (int64_t i = 0; i < check::rounds(1'000, 100'000); ++i) {
        Outcome outcome = finish([&] {
          return sample_prioritized(client->view, random, drawn.batch(), weights.data(), 0, soon());
        });
        CHECK(outcome.status == kOk || outcome.status == kEmpty || outcome.status == kNoMass);
        for (size_t row = 0; outcome.status == kOk && row < 16; ++row) {
          CHECK(drawn.record(row).whole());
          CHECK(weights[row] > 0 && weights[row] <= 1);
        }
        update_random(client->view, random, 1 + static_cast<float>(random.unit()));
        random.next();
      }
    });
  }
  check::together(tasks);
  auto client = arena.join();
  CHECK(client->view.tree.wrong_nodes() == 0);
  CHECK(client->view.tree.total() > 0);
}

TEST(no_bytes_in_the_tree_lead_outside) {
  Random random(12);
  for (int64_t round = 0; round < check::rounds(400, 20'000); ++round) {
    Arena arena(static_cast<int64_t>(3 * (1 + random.below(30))), 3, kOneLock | kPriorities);
    auto client = arena.join();
    const View& view = client->view;
    for (uint32_t lane = 0; lane < 3; ++lane) write_records(view, {Stamped::of(1)}, lane);
    for (auto [begin, bytes] : arena.tree().regions()) {
      for (size_t offset = 0; offset + 4 <= bytes; offset += 4) {
        auto value = static_cast<uint32_t>(random.below(4) ? random.next() : random.below(2) * 0x3f800000u);
        std::memcpy(begin + offset, &value, 4);
      }
    }
    PriorityBlock& block = priorities_of(view);
    block.max_slot = static_cast<int64_t>(random.next());
    block.within_buffer = random.below(2);
    if (random.below(2)) std::memset(&block.alpha, static_cast<int>(random.below(256)), 8);
    Drawn drawn(40);
    std::vector<float> weights(40);
    sample_prioritized(view, random, drawn.batch(), weights.data(), 0, 0);
    update_random(view, random, 1);
    write_records(view, {Stamped::of(2)}, 1, 0);
    set_exponents(view, random.unit(), random.unit(), soon());
    empty(view, true, soon());
  }
}
