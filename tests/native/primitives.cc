// Bounded random integers, the lock, the journal and the bells.
#include <array>
#include <cmath>

#include "arena.h"

namespace {

void check_even(const std::vector<int64_t>& bins, int64_t draws) {
  double expected = static_cast<double>(draws) / static_cast<double>(bins.size());
  for (int64_t count : bins) CHECK(std::abs(static_cast<double>(count) - expected) < 5 * std::sqrt(expected));
}

}  // namespace

TEST(bounded_integers_of_a_huge_range_are_even) {
  Random random(18);
  constexpr uint64_t kBound = 3'000'000'000;
  std::vector<int64_t> bins(10, 0);
  for (int i = 0; i < 1'000'000; ++i) {
    uint64_t drawn = random.below(kBound);
    CHECK(drawn < kBound);
    ++bins[drawn / (kBound / 10)];
  }
  for (int64_t count : bins) CHECK(count > 100'000 - 1500 && count < 100'000 + 1500);
}

TEST(bounded_integers_of_any_range_are_even) {
  Random random(19);
  for (uint64_t bound : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{7}, uint64_t{64}, uint64_t{100}}) {
    std::vector<int64_t> bins(bound, 0);
    for (int i = 0; i < 200'000; ++i) ++bins[random.below(bound)];
    check_even(bins, 200'000);
  }
  // Three quarters of 2^64: reducing by remainder would draw the first third twice as often.
  std::vector<int64_t> bins(3, 0);
  for (int i = 0; i < 200'000; ++i) ++bins[random.below(3ull << 62) >> 62];
  check_even(bins, 200'000);
}

TEST(streams_of_threads_differ_and_repeat) {
  Stream first(5), again(5), other(6);
  uint64_t one = first.fork().next(), two = first.fork().next();
  CHECK(one == again.fork().next());
  CHECK(two == again.fork().next());
  CHECK(one != two);
  CHECK(one != other.fork().next());
}

TEST(a_lock_has_one_owner_at_a_time) {
  Arena arena(4);
  int64_t plain = 0;  // no atomic: ThreadSanitizer would see two owners
  int64_t rounds = check::rounds(40'000, 1'000'000);
  std::vector<std::function<void()>> tasks;
  for (int i = 0; i < 4; ++i) {
    tasks.emplace_back([&] {
      auto client = arena.join();
      for (int64_t k = 0; k < rounds; ++k) {
        LockResult taken;
        while (!(taken = acquire(arena.control()->control_lock, client->view.token, client->view.liveness, soon())).taken) {
        }
        CHECK(!taken.owner_died);
        ++plain;
        release(arena.control()->control_lock);
      }
    });
  }
  check::together(tasks);
  CHECK(plain == 4 * rounds);
  CHECK(arena.control()->control_lock.word == 0);
}

TEST(one_of_many_waiters_takes_a_dead_owners_lock_and_is_told) {
  Arena arena(4);
  for (int64_t round = 0; round < check::rounds(40, 400); ++round) {
    auto owner = arena.join();
    LockBlock& lock = arena.control()->control_lock;
    CHECK(try_lock(lock, owner->view.token));
    int64_t told = 0, plain = 0;
    std::vector<std::function<void()>> tasks;
    for (int i = 0; i < 3; ++i) {
      tasks.emplace_back([&] {
        auto client = arena.join();
        LockResult taken;
        while (!(taken = acquire(lock, client->view.token, client->view.liveness, soon())).taken) {
        }
        told += taken.owner_died;
        ++plain;
        release(lock);
      });
    }
    tasks.emplace_back([&] { owner->close(); });  // its byte goes, its token stays in the lock
    check::together(tasks);
    CHECK(plain == 3);
    CHECK(told == 1);
    CHECK(lock.word == 0);
  }
}

TEST(a_living_owners_lock_is_not_taken) {
  Arena arena(4);
  auto owner = arena.join(), other = arena.join();
  LockBlock& lock = arena.control()->control_lock;
  CHECK(try_lock(lock, owner->view.token));
  LockResult result = acquire(lock, other->view.token, other->view.liveness, monotonic_ns() + 5'000'000);
  CHECK(!result.taken);
  CHECK(result.who == owner->view.token);
  release(lock);
  CHECK(acquire(lock, other->view.token, other->view.liveness, 0).taken);
  release(lock);
}

TEST(a_journal_is_made_wholly_or_not_at_all) {
  for (uint64_t made = 0; made <= 3; ++made) {
    Arena arena(4);
    auto dead = arena.join(), heir = arena.join();
    LaneBlock& lane = dead->view.lanes[0];
    CHECK(try_lock(lane.lock, dead->view.token));
    std::array<int64_t*, 3> words = {&lane.floor, &lane.written_offset, &lane.head};
    for (size_t i = 0; i < words.size(); ++i)
      lane.journal.entries[i] = {
          static_cast<uint64_t>(reinterpret_cast<uint8_t*>(words[i]) - reinterpret_cast<uint8_t*>(arena.control())), 8 + i};
    lane.journal.count = words.size();
    for (uint64_t i = 0; i < made; ++i) *words[i] = static_cast<int64_t>(8 + i);
    dead->close();
    {
      Held held(heir->view, lane.lock, soon());
      CHECK(held);
    }
    for (size_t i = 0; i < words.size(); ++i) CHECK(*words[i] == static_cast<int64_t>(8 + i));
    CHECK(lane.journal.count == 0);
  }
}

TEST(a_ring_between_look_and_sleep_ends_the_sleep) {
  Arena arena(4);
  BellBlock& bell = arena.control()->records_bell;
  uint32_t event = enter_bell(bell.futex);
  CHECK(ring(bell) == 0);
  CHECK(sleep_on_bell(bell.futex, event, 1'000'000'000));
  leave_bell(bell.futex, event);
  CHECK(bell_waiting(bell.futex) == 0);
  event = enter_bell(bell.futex);
  CHECK(!sleep_on_bell(bell.futex, event, 1'000));
  leave_bell(bell.futex, event);
  CHECK(bell_waiting(bell.futex) == 0);
}

TEST(nobody_sleeps_through_a_ring) {
  Arena arena(4);
  constexpr int kWaiters = 2;
  int64_t rounds = check::rounds(20'000, 200'000);
  uint64_t published = 0;
  uint64_t seen[kWaiters] = {};
  uint64_t& bell = arena.control()->records_bell.futex;
  std::vector<std::function<void()>> tasks;
  for (int i = 0; i < kWaiters; ++i) {
    tasks.emplace_back([&, i] {
      for (int64_t k = 1; k <= rounds;) {
        if (order::observe(&published) >= static_cast<uint64_t>(k)) {
          order::publish(&seen[i], static_cast<uint64_t>(k++));
          continue;
        }
        uint32_t event = enter_bell(bell);
        // A ring between this look and the sleep moves the event, so the sleep ends at once.
        if (order::observe(&published) < static_cast<uint64_t>(k)) CHECK(sleep_on_bell(bell, event, 30'000'000'000));
        leave_bell(bell, event);
      }
    });
  }
  tasks.emplace_back([&] {
    Random random(4);
    for (int64_t k = 1; k <= rounds; ++k) {
      for (uint64_t spin = random.below(300); spin > 0; --spin) order::pause_cpu();  // into the waiters' last steps
      order::publish(&published, static_cast<uint64_t>(k));
      CHECK(ring(arena.control()->records_bell) == 0);
      for (uint64_t& one : seen)
        while (order::observe(&one) < static_cast<uint64_t>(k)) std::this_thread::yield();
    }
  });
  check::together(tasks);
  CHECK(bell_waiting(order::peek(&bell)) == 0);
}
