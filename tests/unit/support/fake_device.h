// A device on the CPU, for what must hold on a GPU: its memory can be touched while an operation runs or a
// copy is made, and at no other time. Host code that reads a device tensor ends the test.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/sanitizer.h"
#include "kernels/ref/ref.h"
#include "unit/train/forwarding_ops.h"

namespace hysparse::tests {

class FakeDevice : public Memory {
 public:
  FakeDevice() {
    base_ = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    HYSPARSE_CHECK(base_ != MAP_FAILED, "no addresses for the device");
  }
  ~FakeDevice() override { munmap(base_, kBytes); }

  // Open to the host as long as it lives.
  class Open {
   public:
    explicit Open(FakeDevice& device) : device_(device) { device_.enter(); }
    ~Open() { device_.leave(); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    FakeDevice& device_;
  };

  DeviceKind device() const override { return DeviceKind::cuda; }
  void* allocate(size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const size_t at = used_;
    used_ += (bytes + 4095) / 4096 * 4096;
    HYSPARSE_CHECK(used_ <= kBytes, "the device is full");
    permit(base_ + at, bytes);  // another device may have been here, and kernels' borders in it
    return base_ + at;
  }
  void release(void*, size_t) noexcept override {}  // addresses are not used again
  void zero(void* p, size_t bytes) override {
    const Open open(*this);
    std::memset(p, 0, bytes);
  }
  void from_host(void* dst, const void* host, size_t bytes) override {
    expect(dst, true);
    expect(host, false);
    move(dst, host, bytes);
  }
  void to_host(void* host, const void* src, size_t bytes) override {
    expect(host, false);
    expect(src, true);
    move(host, src, bytes);
  }
  void copy(void* dst, const void* src, size_t bytes) override {
    expect(dst, true);
    expect(src, true);
    move(dst, src, bytes);
  }
  bool holds(const void* p) const { return p >= base_ && p < base_ + kBytes; }

 private:
  static constexpr size_t kBytes = size_t(16) << 30;
  void expect(const void* p, bool here) const {
    HYSPARSE_CHECK(holds(p) == here, "a copy takes {} memory for {}", here ? "host" : "device",
                   here ? "device" : "host");
  }
  void move(void* dst, const void* src, size_t bytes) {
    const Open open(*this);
    std::memmove(dst, src, bytes);
  }
  void enter() {
    const std::lock_guard lock(mutex_);
    if (open_++ == 0) mprotect(base_, kBytes, PROT_READ | PROT_WRITE);
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--open_ == 0) mprotect(base_, kBytes, PROT_NONE);
  }

  std::byte* base_ = nullptr;
  size_t used_ = 0;
  int open_ = 0;
  std::mutex mutex_;
};

// The CPU's operations on it. (Host tensors handed to an operation go unnoticed here.)
class FakeDeviceOps : public ForwardingOps {
 public:
  FakeDeviceOps(const Ops& inner, FakeDevice& device) : ForwardingOps(inner), device_(device) {}
  std::string name() const override { return "fake device"; }
  Memory& memory() const override { return device_; }

 protected:
  void around(const std::function<void()>& call) const override {
    const FakeDevice::Open open(device_);
    call();
  }

 private:
  FakeDevice& device_;
};

// One that draws tokens, too, as the reference does.
class DrawingDeviceOps : public FakeDeviceOps {
 public:
  using FakeDeviceOps::FakeDeviceOps;
  bool draw_tokens(Runtime& rt, const DrawTokens& a) const override {
    drawn += std::ssize(a.rows);
    around([&] { ref_ops().draw_tokens(rt, a); });
    return true;
  }
  mutable int64_t drawn = 0;
};

}  // namespace hysparse::tests
