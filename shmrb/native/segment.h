// One attachment as the binding sees it: the view, the lock byte, and the count of calls in flight that lets a handle be
// closed while other threads use it. Knows nothing of Python.
#pragma once

#include <atomic>
#include <string>

#include "lanes.h"
#include "sequences.h"

namespace shmrb {

// A handle that is closed waits so long for the control lock.
constexpr int64_t kLeaveWithinNs = 50'000'000;

class Segment {
 public:
  View view;

  // Counts a call in; false when the segment was closed.
  class Call {
   public:
    explicit Call(Segment& segment) : segment_(segment) {
      segment_.calls_.fetch_add(1);
      open_ = !segment_.closed_.load();
    }
    ~Call() { segment_.calls_.fetch_sub(1); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    explicit operator bool() const { return open_; }

   private:
    Segment& segment_;
    bool open_;
  };

  ~Segment() {
    close();
    if (view.liveness.probe >= 0) ::close(view.liveness.probe);
  }

  // Opens live.lock for asking after others. 0 or errno.
  int watch(const std::string& live_lock) {
    live_lock_ = live_lock;
    view.liveness.probe = open(live_lock.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    view.liveness.clients = view.clients;
    home_ = this_process();
    view.liveness.max_clients = view.max_clients;
    return view.liveness.probe < 0 ? errno : 0;
  }

  // Takes a client slot, `hint` first. value: the token, or errno with kSystem.
  Outcome attach(uint32_t hint, uint32_t pid, uint32_t role, const std::string& name) {
    if (!view.writable) return {kReadOnly, 0, kNothing, 0, 0};
    for (uint32_t i = 0; i < view.max_clients; ++i) {
      uint32_t client = (hint + i) % view.max_clients;
      if (byte_state(view.liveness.probe, client) == ByteState::kHeld) continue;
      int error = byte_.take(live_lock_.c_str(), client);
      if (error == EAGAIN) continue;
      if (error != 0) return {kSystem, error, kNothing, 0, 0};
      if (byte_state(view.liveness.probe, client) != ByteState::kHeld) {
        byte_.release();
        return {kUnproven, 0, kNothing, 0, 0};
      }
      uint32_t token = open_entry(view, client);
      ClientBlock& block = view.clients[client];
      order::put(&block.pid, pid);
      order::put(&block.attached_ns, coarse_ns(CLOCK_REALTIME));
      size_t length = name.size() < sizeof block.name - 1 ? name.size() : sizeof block.name - 1;
      std::memset(block.name, 0, sizeof block.name);
      std::memcpy(block.name, name.data(), length);
      order::publish(&block.role, role);
      return {kOk, token, kNothing, 0, 0};
    }
    return {kFull, view.max_clients, kNothing, 0, 0};
  }

  // Refuses further calls, waits for those in flight, gives the client slot back. Again: nothing.
  void close() {
    if (home_ != 0 && home_ != this_process()) return abandon();
    if (closed_.exchange(true)) return;
    while (calls_.load() != 0) {
      timespec moment{0, 50'000};
      nanosleep(&moment, nullptr);
    }
    if (view.token) {
      for (uint32_t i = 0; i < view.lane_count; ++i) give_back_lane(view, i);
      // Who cannot give back what it has taken leaves its entry, as if it had died: then others do.
      if (!view.has(kConsumption) || give_all_back(view, monotonic_ns() + kLeaveWithinNs))
        clear_entry(view, view.clients[token_slot(view.token)]);
      byte_.release();
    }
    view.token = 0;
  }

  // In a forked child: the client slot is the parent's. Nothing shared is touched.
  void abandon() {
    closed_.store(true);
    calls_.store(0);
    view.token = 0;
  }

  const std::string& live_lock() const { return live_lock_; }

 private:
  std::string live_lock_;
  HeldByte byte_;
  uint64_t home_ = 0;
  std::atomic<int> calls_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace shmrb
