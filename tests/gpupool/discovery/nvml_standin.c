/* A stand-in for libnvidia-ml.so.1: about the functions that the probe asks for, and no GPU.
 *
 * What it plays is read from the file named by NVML_STANDIN at every count of GPUs, so that a test can change it
 * while the probe runs. The first line is the scenario: ok, none, mig, mig-empty, lost, hang, driver, permission,
 * unified, hgx (eight H100 on an NVSwitch), pair (two A100 with NVLinks between them), sick (the second GPU has
 * errors), gone (the first of two has left the bus), mute (most questions fail). Lines `xid GPU CODE` below it are
 * events, told once each.
 * Built with the real nvml.h where the nvidia-nvml-dev wheel is installed, so that types cannot drift; with -DFEW
 * it is a driver of long ago that has a dozen functions only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HAVE_NVML_H
#include <nvml.h>
#else
#define FEW
typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef int nvmlTemperatureSensors_t;
enum { NVML_SUCCESS = 0, NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_NO_PERMISSION = 4, NVML_ERROR_NOT_FOUND = 6,
       NVML_ERROR_DRIVER_NOT_LOADED = 9, NVML_ERROR_GPU_IS_LOST = 15, NVML_ERROR_INVALID_ARGUMENT = 2,
       NVML_ERROR_UNKNOWN = 999 };
#endif

#define GIB (1024ULL * 1024 * 1024)

static char scenario[64];

static int plays(const char *name) { return strcmp(scenario, name) == 0; }

static void look(void) {
    FILE *file = fopen(getenv("NVML_STANDIN"), "r");
    scenario[0] = '\0';
    if (file != NULL) {
        if (fgets(scenario, sizeof scenario, file) == NULL) scenario[0] = '\0';
        scenario[strcspn(scenario, "\n")] = '\0';
        fclose(file);
    }
}

/* Handles: 1 and 2 are GPUs, 11 and 12 the MIG instances of GPU 1. */
static long number(nvmlDevice_t device) { return (long)device; }
static int h100(void) { return plays("hgx"); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    look();
    if (plays("driver")) return NVML_ERROR_DRIVER_NOT_LOADED;
    if (plays("permission")) return NVML_ERROR_NO_PERMISSION;
    puts("a library that prints to standard output");
    fflush(stdout);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t result) { (void)result; return "stand-in"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    snprintf(version, length, "570.00.01");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    look();
    while (plays("hang")) sleep(1);
    *count = plays("none") ? 0 : plays("mig") || plays("mig-silent") || plays("mig-empty") || plays("unified") || plays("gone") ? 1 : plays("hgx") ? 8 : 2;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (plays("lost") && index == 1) return NVML_ERROR_GPU_IS_LOST;
    *device = (nvmlDevice_t)(long)(index + (plays("gone") ? 2 : 1));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    if (number(device) > 10)
        snprintf(uuid, length, "MIG-00000000-0000-0000-0000-0000000000%02ld", number(device));
    else
        snprintf(uuid, length, "GPU-00000000-0000-0000-0000-0000000000%02ld", number(device));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    if (plays("unified")) snprintf(name, length, "NVIDIA GB10");
    else if (h100()) snprintf(name, length, "NVIDIA H100 80GB HBM3");
    else snprintf(name, length, number(device) > 10 ? "NVIDIA A100-PCIE-40GB MIG 3g.20gb" : "NVIDIA A100-PCIE-40GB");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02lX:00.0", 0x16 + number(device));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    if (plays("unified")) return NVML_ERROR_NOT_SUPPORTED;
    if (plays("mute")) return NVML_ERROR_UNKNOWN;
    memory->total = (number(device) > 10 ? 20 : 40) * GIB;
    memory->used = number(device) * GIB / 2;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    if (number(device) > 10 || plays("unified")) return NVML_ERROR_NOT_SUPPORTED;
    if (plays("mute")) return NVML_ERROR_UNKNOWN;
    rates->gpu = 37;
    rates->memory = 12;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius) {
    (void)sensor;
    if (plays("unified")) return NVML_ERROR_NOT_SUPPORTED;
    *celsius = (unsigned int)(40 + number(device));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    (void)device;
    *major = h100() ? 9 : 8;
    *minor = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    (void)device;
    if (plays("mig-silent")) return NVML_ERROR_UNKNOWN;
    if (!plays("mig") && !plays("mig-empty")) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    (void)device;
    *count = 7;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    (void)device;
    if (plays("mig-empty") || index > 1) return NVML_ERROR_NOT_FOUND;
    *mig = (nvmlDevice_t)(long)(11 + index);
    return NVML_SUCCESS;
}

#ifndef FEW

static int sick(nvmlDevice_t device) { return plays("sick") && number(device) == 2; }

#define SAYS(TYPE, FUNCTION, VALUE)                                  \
    nvmlReturn_t FUNCTION(nvmlDevice_t device, TYPE *answer) {       \
        if (number(device) > 10) return NVML_ERROR_NOT_SUPPORTED;    \
        if (plays("mute")) return NVML_ERROR_UNKNOWN;                \
        *answer = (VALUE);                                           \
        return NVML_SUCCESS;                                         \
    }

SAYS(nvmlDeviceArchitecture_t, nvmlDeviceGetArchitecture, h100() ? 9 : 7)
SAYS(unsigned int, nvmlDeviceGetNumGpuCores, h100() ? 16896 : 6912)
SAYS(unsigned int, nvmlDeviceGetEnforcedPowerLimit, h100() ? 700000 : 250000)
SAYS(unsigned int, nvmlDeviceGetPowerUsage, (unsigned int)(100000 + 1000 * number(device)))
SAYS(unsigned int, nvmlDeviceGetMaxPcieLinkGeneration, h100() ? 5 : 4)
SAYS(unsigned int, nvmlDeviceGetCurrPcieLinkGeneration, 4)
SAYS(unsigned int, nvmlDeviceGetMaxPcieLinkWidth, 16)
SAYS(unsigned int, nvmlDeviceGetCurrPcieLinkWidth, 8)
SAYS(unsigned int, nvmlDeviceGetPcieReplayCounter, 3)
SAYS(nvmlEnableState_t, nvmlDeviceGetRetiredPagesPendingStatus, NVML_FEATURE_DISABLED)
SAYS(nvmlComputeMode_t, nvmlDeviceGetComputeMode, NVML_COMPUTEMODE_DEFAULT)
SAYS(unsigned long long, nvmlDeviceGetCurrentClocksThrottleReasons, sick(device) ? 0x40ULL | 0x1ULL : 0x1ULL)
SAYS(unsigned long long, nvmlDeviceGetSupportedEventTypes, nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError)

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *speed) {
    (void)device, (void)speed;
    return NVML_ERROR_NOT_SUPPORTED; /* no fan of its own */
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    snprintf(serial, length, "132100000000%ld", number(device));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    (void)device;
    snprintf(version, length, "96.00.74.00.01");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *part, unsigned int length) {
    (void)device;
    snprintf(part, length, "692-2G520-0200-000");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    (void)device;
    if (plays("unified") || plays("mute")) return NVML_ERROR_NOT_SUPPORTED;
    memory->bar1Total = 64 * GIB;
    memory->bar1Used = 1;
    memory->bar1Free = memory->bar1Total - 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    if (!h100()) return NVML_ERROR_NOT_SUPPORTED; /* the others are of a driver that has the old question only */
    memory->total = 81559ULL << 20;
    memory->reserved = 480ULL << 20;
    memory->used = (unsigned long long)number(device) << 30;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    (void)device;
    if (plays("mute")) return NVML_ERROR_UNKNOWN;
    *mhz = type == NVML_CLOCK_MEM ? 2619 : 1410;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    (void)device, (void)type;
    *mhz = 1980;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t since,
                                         unsigned long long *count) {
    if (plays("mute") || number(device) > 10) return NVML_ERROR_NOT_SUPPORTED;
    *count = !sick(device) ? 0 : kind == NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? 2 : 7;
    if (sick(device) && since == NVML_AGGREGATE_ECC) *count += 10;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failed) {
    if (plays("mute") || number(device) > 10) return NVML_ERROR_NOT_SUPPORTED;
    *correctable = sick(device) ? 4 : 0;
    *uncorrectable = *pending = sick(device);
    *failed = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses) {
    (void)cause;
    if (plays("mute")) return NVML_ERROR_NOT_SUPPORTED;
    unsigned int pages = sick(device) ? 1 : 0;
    if (addresses == NULL && pages > 0) { *count = pages; return NVML_ERROR_INSUFFICIENT_SIZE; }
    if (addresses != NULL && pages > 0) addresses[0] = 0x1000;
    *count = pages;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    for (int i = 0; i < count; i++) {
        values[i].nvmlReturn = NVML_SUCCESS;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        if (values[i].fieldId == NVML_FI_DEV_MEMORY_TEMP) values[i].value.uiVal = 57;
        else if (values[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) values[i].value.uiVal = sick(device) ? 4 : 0;
        else if (values[i].fieldId == NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON) values[i].value.uiVal = h100() ? 26562 : 25781;
        else if (values[i].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX) {
            values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
            values[i].value.ullVal = 1ULL << 33; /* KiB: beyond 32 bits */
        } else values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        if (plays("mute") || plays("unified")) values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t processes(nvmlDevice_t device, unsigned int first, unsigned int *count, nvmlProcessInfo_t *infos) {
    if (plays("mute")) return NVML_ERROR_NO_PERMISSION;
    unsigned int found = h100() && number(device) == 1 ? 1 : 0;
    if (found > *count) { *count = found; return NVML_ERROR_INSUFFICIENT_SIZE; }
    if (found) {
        memset(infos, 0, sizeof *infos);
        infos[0].pid = first;
        infos[0].usedGpuMemory = first == 4242 ? 3ULL << 30 : ~0ULL; /* of the second nothing is known */
        infos[0].gpuInstanceId = infos[0].computeInstanceId = 0xFFFFFFFF;
    }
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    return processes(device, 4242, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    return processes(device, 4343, count, infos);
}

static unsigned int links(void) { return h100() ? 18 : plays("pair") ? 12 : 0; }

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *state) {
    if (link >= links()) return NVML_ERROR_INVALID_ARGUMENT;
    *state = h100() && number(device) == 8 && link == 17 ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version) {
    (void)device, (void)link;
    *version = h100() ? 6 : 5;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    if (!h100()) return nvmlDeviceGetPciInfo_v3((nvmlDevice_t)(3 - number(device)), pci);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", 0xC0 + link / 5);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type) {
    (void)device, (void)link;
    *type = h100() ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level) {
    *level = (number(one) <= 4) == (number(other) <= 4) ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
    if (!h100()) *level = NVML_TOPOLOGY_SINGLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 12080;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    *id = (unsigned int)(number(device) - 10);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    if (number(device) <= 10) return NVML_ERROR_NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = 42;
    return NVML_SUCCESS;
}

/* Events: each line of the file once. */

static unsigned int told;

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    *set = (nvmlEventSet_t)1L;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { (void)set; return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    (void)device, (void)types, (void)set;
    return plays("mute") ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout) {
    (void)set, (void)timeout;
    FILE *file = fopen(getenv("NVML_STANDIN"), "r");
    char line[64];
    unsigned int seen = 0, gpu, code;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "xid %u %u", &gpu, &code) != 2 || ++seen <= told) continue;
        fclose(file);
        told++;
        memset(data, 0, sizeof *data);
        data->device = (nvmlDevice_t)(long)gpu;
        data->eventType = code ? nvmlEventTypeXidCriticalError : nvmlEventTypeDoubleBitEccError;
        data->eventData = code;
        data->gpuInstanceId = data->computeInstanceId = 0xFFFFFFFF;
        return NVML_SUCCESS;
    }
    if (file != NULL) fclose(file);
    return NVML_ERROR_TIMEOUT;
}

#endif
